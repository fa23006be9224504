// The bell where no socket keeps it current: asked for every half minute while somebody looks. No answer is unknown.

const EVERY_MS = 30_000;

async function ask() {
  const bell = document.querySelector("#panel-alerts[data-polled]");
  if (!bell || document.hidden) return;
  try {
    const answer = await fetch(bell.dataset.polled, { redirect: "error" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const html = await answer.text();
    // Replaced only when it says something else: whoever stands on the link by keyboard stays there.
    if (html.trim() !== told) bell.outerHTML = told = html.trim();
  } catch {
    told = "";
    const link = bell.querySelector("a");
    link.dataset.tone = "warn";
    link.querySelector(".bell-word").textContent = "alerts unknown";
  }
}

let told = document.querySelector("#panel-alerts[data-polled]")?.outerHTML.trim() ?? "";
setInterval(ask, EVERY_MS);
document.addEventListener("visibilitychange", ask);
