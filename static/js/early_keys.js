// Keys pressed while the page's modules still load are kept, and told again in their order once the page hears them.
(() => {
  const KEPT_MAX = 32;
  const kept = [];
  const keep = (event) => {
    if (kept.length >= KEPT_MAX || event.target.closest?.("input, textarea, select")) return;
    kept.push(event);
    if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) event.preventDefault();
  };
  const tell = ({ key, code, ctrlKey, metaKey, altKey, shiftKey }) => {
    const told = new KeyboardEvent("keydown", { key, code, ctrlKey, metaKey, altKey, shiftKey, bubbles: true, cancelable: true });
    const field = document.activeElement;
    const typed = field.matches?.("input[type=search], input[type=text]") && key.length === 1 && !(ctrlKey || metaKey || altKey);
    if (!(field || document.body).dispatchEvent(told) || !typed) return;
    field.setRangeText(key, field.selectionStart, field.selectionEnd, "end");
    field.dispatchEvent(new Event("input", { bubbles: true }));
  };
  document.addEventListener("keydown", keep, true);
  window.tidemarkHears = () => {
    document.removeEventListener("keydown", keep, true);
    kept.splice(0).forEach(tell);
  };
})();
