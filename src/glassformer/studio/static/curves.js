// Training curves drawn by plotly: a faint raw line, a smoothed line above it, and validation results as dots.

import { make } from "./dom.js";
import { onTheme } from "./painting.js";
import { csv } from "./panel.js";

const MAX_POINTS = 2000;
const SERIES = 8;

let loading = null;
let styles = [];

/** Create elements with the ids of the styles that plotly would inject, which prevents the injection. */
export function setPlotlyStyles(ids) {
  styles = ids;
}

/** Load plotly when the first chart is drawn, because its script is large. */
function plotly() {
  loading ??= new Promise((resolve, reject) => {
    if (window.Plotly) return resolve(window.Plotly);
    for (const id of styles) document.head.append(make("meta", { id, name: "glassformer:not-a-style" }));
    const script = make("script", { src: "/static/plotly.min.js" });
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => { loading = null; reject(new Error("Plotly could not be loaded.")); };
    document.head.append(script);
  });
  return loading;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export const seriesColour = (index) => colour(`--series-${index % SERIES}`);

/** Line style of a run by its colour number: the colours are used twice, first solid and then dashed. */
export const seriesDash = (index) => (index >= SERIES ? "dash" : "solid");

/** Make a sample of a run's line; hollow if the run is not drawn. */
export function swatch(index, isDrawn = true) {
  const made = make(`span.swatch${isDrawn ? "" : ".is-hollow"}${index >= SERIES ? ".is-dashed" : ""}`, { data: { colour: String(index) } });
  made.style.setProperty("--colour", `var(--series-${index % SERIES})`);
  return made;
}

/** Exponential moving average, with bias correction for the first values. */
export function smoothed(values, strength) {
  let sum = 0, weight = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    sum = strength * sum + (1 - strength) * value;
    weight = strength * weight + (1 - strength);
    return sum / weight;
  });
}

/** Reduce to about `most` points; each stretch keeps its lowest and highest point, so that no peak is lost. */
export function thinned(points, most = MAX_POINTS) {
  if (points.length <= most) return points;
  const stretch = points.length / (most / 2), chosen = [];
  for (let start = 0; start < points.length; start += stretch) {
    const part = points.slice(Math.floor(start), Math.floor(start + stretch));
    if (!part.length) continue;
    const low = part.reduce((found, point) => (point[1] < found[1] ? point : found));
    const high = part.reduce((found, point) => (point[1] > found[1] ? point : found));
    chosen.push(...(low === high ? [low] : low[0] < high[0] ? [low, high] : [high, low]));
  }
  return chosen;
}

/** Chart in `element`. A series is {name, colour, points, raw, dots, dash}; `cursor` is a step to mark by a line. */
export class Chart {
  constructor({ height = 320, x = "step", label = "curves" } = {}) {
    this.element = make("div.chart", { role: "img", "aria-label": label, tabIndex: 0 });
    this.element.style.height = `${height}px`;
    Object.assign(this, { height, x, series: [], options: {}, queue: Promise.resolve() });
    this.forgetTheme = onTheme(() => this.show(this.series, this.options));
  }

  close() {
    this.forgetTheme();
    if (this.isDrawn) window.Plotly.purge(this.element);
  }

  /** Draw the series; only the last of several quick calls is drawn. */
  show(series, options = {}) {
    Object.assign(this, { series, options });
    const last = (this.last = Symbol("drawing"));
    this.queue = this.queue.then(async () => {
      const Plotly = await plotly();
      if (this.last !== last || !this.element.isConnected) return;
      await Plotly.react(this.element, this.traces(), this.layout(), { displayModeBar: false, responsive: true });
      this.isDrawn = true;
      this.element.dataset.points = series.reduce((sum, of) => sum + of.points.length, 0);
    });
    return this.queue;
  }

  traces() {
    return this.series.flatMap(({ name, colour: ink, points, raw = null, dots = null, dash = "solid", width = 2, isQuiet = false }) => {
      const line = (of, more) => ({
        x: of.map(([step]) => step), y: of.map(([, value]) => value), name, type: "scatter", mode: "lines",
        hovertemplate: `%{y:.4g}<extra>${escaped(name)}</extra>`, showlegend: false, ...more,
      });
      const made = [];
      if (raw) made.push(line(thinned(raw), { line: { color: ink, width: 1 }, opacity: 0.4, hoverinfo: "skip", hovertemplate: undefined }));
      made.push(line(thinned(points), { line: { color: ink, width, dash }, opacity: isQuiet ? 0.25 : 1, ...(isQuiet ? { hoverinfo: "skip", hovertemplate: undefined } : {}) }));
      if (dots?.length) {
        made.push(line(thinned(dots), {
          mode: "lines+markers", name: `${name} validation`, hovertemplate: `%{y:.4g}<extra>${escaped(name)} validation</extra>`,
          line: { color: ink, width: 1, dash: "dot" }, marker: { color: colour("--surface"), size: 7, line: { color: ink, width: 2 } },
        }));
      }
      return made;
    });
  }

  layout() {
    const { isLog = false, y = "", cursor = null, range = null } = this.options;
    const axis = {
      gridcolor: colour("--faint"), linecolor: colour("--faint"), zerolinecolor: colour("--faint"), tickcolor: colour("--faint"),
      tickfont: { color: colour("--muted"), size: 12 }, automargin: true, fixedrange: false,
    };
    return {
      height: this.height, margin: { l: 56, r: 12, t: 8, b: 40 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: colour("--sans"), size: 12, color: colour("--ink") }, hovermode: "x unified", showlegend: false, dragmode: "zoom",
      hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--faint"), font: { color: colour("--ink"), size: 12 } },
      xaxis: { ...axis, title: { text: this.x, font: { color: colour("--muted"), size: 12 }, standoff: 8 }, rangemode: "tozero", showgrid: false },
      yaxis: { ...axis, title: { text: y, font: { color: colour("--muted"), size: 12 }, standoff: 8 }, type: isLog ? "log" : "linear", exponentformat: "power", ...(range ? { range } : {}) },
      shapes: cursor === null ? [] : [{ type: "line", x0: cursor, x1: cursor, yref: "paper", y0: 0, y1: 1, line: { color: colour("--select"), width: 2 } }],
      uirevision: this.options.revision ?? "same",
    };
  }

  files() {
    const picture = (format) => async () => {
      await this.queue; // export the drawing that is in progress
      const address = await (await plotly()).toImage(this.element, {
        format, width: this.element.clientWidth, height: this.height, scale: format === "png" ? 2 : 1,
      });
      return blobOf(address);
    };
    const rows = () => [["series", "step", "value"], ...this.series.flatMap(({ name, points, raw, dots }) => [
      ...(raw ?? points).map(([step, value]) => [name, step, value]),
      ...(dots ?? []).map(([step, value]) => [`${name} validation`, step, value]),
    ])];
    return { png: picture("png"), svg: picture("svg"), csv: async () => csv(rows()) };
  }
}

/** Decode a data: address; the content policy forbids fetching one. */
function blobOf(address) {
  const [, type, isBase64, data] = /^data:([^;,]*)[^,]*?(;base64)?,(.*)$/s.exec(address);
  const text = isBase64 ? atob(data) : decodeURIComponent(data);
  return new Blob([isBase64 ? Uint8Array.from(text, (character) => character.charCodeAt(0)) : text], { type });
}

/** Escape the few tags that plotly interprets in text. */
const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll("%{", "% {");
