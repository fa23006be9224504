// What the time charts of a page have in common: one crosshair, and a drag that zooms the whole page by its URL.

import * as noting from "./noting.js";

const SPAN_MIN_MS = 60_000;
/** Texts of a chart's axis are wall-clock times of the page's zone; they are compared as if they were UTC. */
const asTime = (text) => Date.parse(`${text.slice(0, 19).replace(" ", "T")}Z`);
const asText = (time_ms) => new Date(time_ms).toISOString().slice(0, 19);

const charts = new Set();

/** A drawn chart whose x axis is time joins the others. */
export function join(plot) {
  if (charts.has(plot)) return;
  charts.add(plot);
  const line = document.createElement("div");
  line.className = "crosshair";
  line.hidden = true;
  plot.parentElement.append(line);
  plot.crosshair = line;
  plot.on("plotly_hover", (event) => show(event.points[0].x, plot));
  plot.on("plotly_unhover", hide);
  plot.on("plotly_relayout", zoom);
  noting.follow(plot);
}

export function leave(plot) {
  charts.delete(plot);
  plot.crosshair?.remove();
}

function show(x, from) {
  for (const plot of charts) {
    const { xaxis } = plot._fullLayout ?? {};
    const at = xaxis?.d2p(x);
    plot.crosshair.hidden = plot === from || !(at >= 0 && at <= xaxis._length);
    if (!plot.crosshair.hidden) plot.crosshair.style.translate = `${Math.round(xaxis._offset + at)}px 0`;
  }
}

function hide() {
  for (const plot of charts) plot.crosshair.hidden = true;
}

/** The dragged range as the page's range: in the URL, so that the back button leads out again. */
function zoom(event) {
  const [begin, end] = [event["xaxis.range[0]"], event["xaxis.range[1]"]];
  if (typeof begin !== "string" || typeof end !== "string") return;
  let [from_ms, to_ms] = [asTime(begin), asTime(end)];
  const lack_ms = SPAN_MIN_MS - (to_ms - from_ms);
  if (lack_ms > 0) [from_ms, to_ms] = [from_ms - lack_ms / 2, to_ms + lack_ms / 2];
  const query = new URLSearchParams(location.search);
  query.set("from", asText(from_ms));
  query.set("to", asText(to_ms));
  location.assign(`${location.pathname}?${query}`);
}
