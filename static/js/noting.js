// Shift and a drag over a time chart: a note on that range, in a dialog with the form of /notes/.

const SPAN_MIN_PX = 4;

const dialog = document.getElementById("note-dialog");
let dragged = null;

/** Whether a range is being drawn: charts keep still until then. */
export const underWay = () => dragged !== null;

export function follow(plot) {
  if (!dialog) return;
  // Caught before Plotly, whose own drag with Shift would move the axis.
  for (const name of ["pointerdown", "mousedown"]) plot.addEventListener(name, (event) => begin(event, plot), true);
}

function begin(event, plot) {
  if (!event.shiftKey || event.button !== 0 || !event.target.closest(".nsewdrag")) return;
  event.preventDefault();
  event.stopPropagation();
  if (event.type === "pointerdown") draw(event.clientX, plot);
}

function draw(from, plot) {
  const { xaxis } = plot._fullLayout;
  const within = (x) => Math.min(Math.max(x - plot.getBoundingClientRect().left - xaxis._offset, 0), xaxis._length);
  const start = within(from);
  const band = document.createElement("div");
  band.className = "note-band";
  plot.parentElement.append(band);
  dragged = [start, start];
  const ended = new AbortController();
  const listen = (name, act) => window.addEventListener(name, act, { signal: ended.signal, capture: true });
  const end = () => {
    ended.abort();
    band.remove();
    dragged = null;
  };
  listen("pointermove", ({ clientX }) => {
    dragged = [start, within(clientX)].sort((one, other) => one - other);
    band.style.left = `${xaxis._offset + dragged[0]}px`;
    band.style.width = `${dragged[1] - dragged[0]}px`;
  });
  listen("keydown", ({ key }) => key === "Escape" && end());
  listen("pointercancel", end);
  listen("pointerup", () => {
    const [first, last] = dragged;
    end();
    if (last - first >= SPAN_MIN_PX) ask(...[first, last].map((at) => asText(xaxis.p2d(at))));
  });
}

/** Plotly's `2026-12-01 05:13:20.1234` as a form's field has it. */
const asText = (moment) => moment.slice(0, 19).replace(" ", "T").padEnd(19, ":00");

function ask(begins, ends) {
  document.getElementById("drag-begins").value = begins;
  document.getElementById("drag-ends").value = ends;
  dialog.showModal();
  document.getElementById("drag-text").focus();
}
