// Ctrl K: jump to a page, tenant, namespace, worker, pool, template, request or saved view. The server decides what
// may be found. Also completes the fields of the scope.

import { withoutSecrets } from "./secrets.js";

const WAIT_MS = 120;

const dialog = document.getElementById("palette");
const field = document.getElementById("palette-text");
const list = document.getElementById("palette-hits");
let asked = 0;

/** Findings of the text with the page's own state; an answer that was overtaken is dropped. */
async function find() {
  const mine = ++asked;
  const query = new URLSearchParams(location.search);
  query.set("text", withoutSecrets(field.value));
  query.set("list", "1");
  try {
    const answer = await fetch(`/search/?${query}`, { redirect: "error" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const html = await answer.text();
    if (mine === asked) list.innerHTML = html;
  } catch {
    if (mine === asked) list.textContent = "The search does not answer. Try again in a moment.";
  }
}

function later(act) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(act, WAIT_MS);
  };
}

export function open() {
  if (dialog.open) return;
  dialog.showModal();
  field.select();
  find();
}

dialog.addEventListener("keydown", (event) => {
  const links = [...list.querySelectorAll("a")];
  if (event.key === "Enter" && document.activeElement === field) {
    event.preventDefault();
    links[0]?.click();
  }
  if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
  event.preventDefault();
  const at = links.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
  (at < 0 ? field : links[Math.min(at, links.length - 1)] || field).focus();
});
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close();
});
field.addEventListener("input", later(find));

document.getElementById("palette-open")?.addEventListener("click", (event) => {
  if (event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  open();
});
document.addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
  event.preventDefault();
  open();
});

for (const input of document.querySelectorAll("[data-suggest]")) {
  const choices = document.createElement("datalist");
  choices.id = `suggest-${input.dataset.suggest}`;
  input.after(choices);
  input.setAttribute("list", choices.id);
  const complete = async () => {
    const query = new URLSearchParams({ text: withoutSecrets(input.value) });
    const answer = await fetch(`/search/names/${input.dataset.suggest}/?${query}`, { redirect: "error" }).catch(() => null);
    if (!answer?.ok) return;
    const { names } = await answer.json();
    choices.replaceChildren(...names.map((name) => Object.assign(document.createElement("option"), { value: name })));
  };
  input.addEventListener("focus", complete);
  input.addEventListener("input", later(complete));
}
