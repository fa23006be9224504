// <tm-chart data-figure="{…}">: a Plotly figure that follows its attribute and the theme, drawn only while visible.

import * as noting from "./noting.js";
import * as timeAxis from "./timeaxis.js";

const CONFIG = {
  displaylogo: false,
  responsive: true,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "pan2d", "zoom2d"],
};

const NARROW_PX = 480;
/** What is dragged over must not change under the pointer: the figure waits this long and looks again. */
const REDRAW_AFTER_MS = 300;
/** A long name would push a small chart's legend into a column: the bar above says what is compared with. */
const unname = (trace) => (trace.showlegend = false);

class Chart extends HTMLElement {
  static observedAttributes = ["data-figure"];

  connectedCallback() {
    if (!this.plot) {
      this.plot = document.createElement("div");
      this.plot.className = "plot";
      this.plot.setAttribute("role", "group");
      this.plot.setAttribute("aria-label", `${this.dataset.label}, as a chart; a table of the values is offered above it`);
      this.replaceChildren(this.plot);
    }
    this.visible = false;
    this.redraw = () => this.draw();
    document.addEventListener("tidemark:theme", this.redraw);
    this.watcher = new IntersectionObserver(([entry]) => {
      this.visible = entry.isIntersecting;
      if (this.visible && this.dirty) this.draw();
    });
    this.watcher.observe(this);
    this.draw();
  }

  disconnectedCallback() {
    document.removeEventListener("tidemark:theme", this.redraw);
    this.watcher.disconnect();
    clearTimeout(this.later);
    timeAxis.leave(this.plot);
    if (window.Plotly && this.plot) Plotly.purge(this.plot);
  }

  attributeChangedCallback() {
    if (this.plot && this.isConnected) this.draw();
  }

  draw() {
    if (this.plot._dragging || noting.underWay()) {
      this.later ||= setTimeout(() => ((this.later = 0), this.draw()), REDRAW_AFTER_MS);
      return;
    }
    this.dirty = !this.visible && this.drawn;
    if (this.dirty || !window.Plotly || !this.dataset.figure) return;
    const figure = JSON.parse(this.dataset.figure);
    this.drawn = true;
    if (this.clientWidth < NARROW_PX) figure.data.filter((trace) => trace.meta === "earlier").forEach(unname);
    Plotly.react(this.plot, figure.data, themed(figure.layout, this), CONFIG);
    if (figure.layout.xaxis?.type === "date") timeAxis.join(this.plot);
    if (this.dataset.name === "heat" && !this.followsClicks) {
      this.followsClicks = true;
      this.plot.on("plotly_click", openWorkerThen);
    }
  }

  async download() {
    const background = getComputedStyle(document.documentElement).getPropertyValue("--tm-surface").trim();
    await Plotly.relayout(this.plot, { paper_bgcolor: background });
    await Plotly.downloadImage(this.plot, { format: "png", scale: 2, filename: `tidemark-${this.dataset.name}` });
    this.draw();
  }
}

const AROUND_CLICK_S = 300;

/** The page of the clicked cell's worker, five minutes to either side of the cell. */
function openWorkerThen(event) {
  const [cell] = event.points;
  const { first_s, step_s } = cell.data.meta;
  const at_s = first_s + cell.pointIndex[1] * step_s;
  const iso = (moment_s) => new Date(moment_s * 1000).toISOString().replace(/\.\d+Z$/, "Z");
  const query = new URLSearchParams(location.search);
  query.set("worker", cell.y);
  query.set("from", iso(at_s - AROUND_CLICK_S));
  query.set("to", iso(Math.min(at_s + AROUND_CLICK_S, Date.now() / 1000)));
  location.href = `/?${query}`;
}

/** The figure's layout in the page's colours. */
function themed(layout, element) {
  const style = getComputedStyle(element);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = {
    gridcolor: colour("--tm-grid"), linecolor: colour("--tm-line"), zerolinecolor: colour("--tm-line"),
    tickfont: { size: 11 }, title: { font: { size: 11 } },
  };
  const merged = (own) => ({ ...axis, ...own, title: { ...own?.title, font: { size: 11 } } });
  return {
    ...layout,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: style.fontFamily, size: 12, color: colour("--tm-muted") },
    hoverlabel: { bgcolor: colour("--tm-surface"), bordercolor: colour("--tm-line"), font: { color: colour("--tm-text") } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--tm-muted"), activecolor: colour("--tm-accent") },
    xaxis: merged(layout.xaxis),
    yaxis: merged(layout.yaxis),
  };
}

// Plotly is a deferred classic script before this module, so it is there when elements are upgraded.
customElements.define("tm-chart", Chart);
