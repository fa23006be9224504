// The frame of every page: theme, keyboard, menus, ages, table and picture of a chart.

import "./palette.js";
import "./secrets.js";

const GO_WITHIN_MS = 1200;
const AGE_TICK_MS = 1000;

/** Age of a panel's newest figure: late is amber, stale is grey. The text ticks between two pushes. */
class Age extends HTMLElement {
  static observedAttributes = ["data-at"];
  static shown = new Set();

  connectedCallback() {
    Age.shown.add(this);
    this.show();
  }
  disconnectedCallback() {
    Age.shown.delete(this);
  }
  attributeChangedCallback() {
    this.show();
  }
  show() {
    const text = this.querySelector(".age-text");
    if (!text) return;
    const age_s = Math.max(0, Date.now() / 1000 - Number(this.dataset.at));
    const late = age_s >= Number(this.dataset.lateAfter);
    const stale = age_s >= Number(this.dataset.staleAfter);
    text.dataset.age = stale ? "stale" : late ? "late" : "fresh";
    text.textContent = `${words(age_s)} old${stale ? ", stale" : late ? ", late" : ""}`;
  }
}

function words(age_s) {
  if (age_s < 10) return `${age_s.toFixed(1)} s`;
  if (age_s < 120) return `${Math.round(age_s)} s`;
  if (age_s < 7200) return `${Math.round(age_s / 60)} min`;
  return `${Math.round(age_s / 3600)} h`;
}

customElements.define("tm-age", Age);
setInterval(() => Age.shown.forEach((age) => age.show()), AGE_TICK_MS);

// The server shows times in the browser's zone unless the user or the URL names another.
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zone) document.cookie = `tz=${zone}; path=/; max-age=31536000; samesite=lax`;

const reveal = (id, click) => {
  const button = document.getElementById(id);
  if (!button) return;
  button.hidden = false;
  button.addEventListener("click", click);
};
const help = document.getElementById("help");
reveal("theme-toggle", () => window.tidemarkToggleTheme());
reveal("help-open", () => help.showModal());
const railToggle = document.getElementById("rail-toggle");
const sayRail = (width) => railToggle?.setAttribute("aria-pressed", String(width === "narrow"));
reveal("rail-toggle", () => {
  sayRail(window.tidemarkToggleRail());
  window.dispatchEvent(new Event("resize"));
});
sayRail(document.documentElement.dataset.rail);

document.addEventListener("click", (event) => {
  for (const open of document.querySelectorAll("details.hint[open], details.user-menu[open], details.pop[open]")) {
    if (!open.contains(event.target)) open.open = false;
  }
  const picture = event.target.closest("[data-png]");
  if (picture) document.getElementById(picture.dataset.png)?.download();
  event.target.closest("[data-close-dialog]")?.closest("dialog").close();
  const table = event.target.closest("[data-close-table]");
  if (table) table.closest(".table-slot")?.replaceChildren();
});

let goUntil_ms = 0;
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    document.querySelectorAll("details.hint[open], details.user-menu[open], details.pop[open]").forEach(shut);
  }
  if (event.key === "ArrowDown" || event.key === "ArrowUp") walk(event);
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (performance.now() < goUntil_ms) {
    goUntil_ms = 0;
    const link = document.querySelector(`[data-go="${CSS.escape(event.key)}"]`);
    if (link) {
      event.preventDefault();
      link.click();
    }
    return;
  }
  if (event.key === "g") goUntil_ms = performance.now() + GO_WITHIN_MS;
  else if (event.key === "/") focusFilter(event);
  else if (event.key === "?") help.showModal();
  else if (event.key === "p") document.getElementById("live-toggle")?.click();
});

/** Whoever stood in it by keyboard stands on its button again. */
function shut(open) {
  if (open.contains(document.activeElement)) open.querySelector("summary").focus();
  open.open = false;
}

/** Arrows go from one thing of an open menu to the next; a field of it keeps them for itself. */
function walk(event) {
  const menu = event.target.closest("details.pop[open], details.user-menu[open]");
  if (!menu || event.target.closest("input, textarea, select")) return;
  const items = [...menu.querySelectorAll(".menu :is(a, button, input:not([type=hidden]))")];
  const at = items.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
  event.preventDefault();
  (items[at] ?? menu.querySelector("summary")).focus();
}

function focusFilter(event) {
  const filter = document.querySelector("[data-filter]");
  if (!filter) return;
  event.preventDefault();
  const menu = filter.closest("details");
  if (menu) menu.open = true;
  filter.focus();
  filter.select();
}

window.tidemarkHears();
