// Sets the theme before the first paint: the stored choice, else the system's.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const chosen = localStorage.getItem("tidemark-theme");
    document.documentElement.dataset.bsTheme = chosen || (dark.matches ? "dark" : "light");
    document.dispatchEvent(new CustomEvent("tidemark:theme"));
  };
  window.tidemarkToggleTheme = () => {
    const next = document.documentElement.dataset.bsTheme === "dark" ? "light" : "dark";
    localStorage.setItem("tidemark-theme", next);
    apply();
  };
  dark.addEventListener("change", apply);
  apply();
})();
