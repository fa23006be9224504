// Buttons that copy the text of the element they name: keys and commands that are shown once.

const SAID_FOR_MS = 2000;

async function copy(button) {
  const source = document.getElementById(button.dataset.copy);
  if (!source) return;
  try {
    await navigator.clipboard.writeText(source.textContent.trim());
    say(button, "Copied");
  } catch {
    // Without a secure context the browser refuses: the text is selected, and the keyboard copies it.
    getSelection().selectAllChildren(source);
    say(button, "Selected: press Ctrl-C");
  }
}

function say(button, words) {
  const label = button.querySelector("span") ?? button;
  const before = label.textContent;
  if (before === words) return;
  label.textContent = words;
  setTimeout(() => (label.textContent = before), SAID_FOR_MS);
}

for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = false;
  button.setAttribute("aria-live", "polite");
  button.addEventListener("click", () => copy(button));
}
