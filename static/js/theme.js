// Sets the theme and the rail's width before the first paint: the stored choice, else the system's theme and a wide rail.
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
  const rail = () => (document.documentElement.dataset.rail = localStorage.getItem("tidemark-rail") || "wide");
  window.tidemarkToggleRail = () => {
    localStorage.setItem("tidemark-rail", document.documentElement.dataset.rail === "narrow" ? "wide" : "narrow");
    return rail();
  };
  dark.addEventListener("change", apply);
  apply();
  rail();
})();
