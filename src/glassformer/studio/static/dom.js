// DOM helpers and number formats. Text is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element: `make("p.note", { title: "…" }, "text", child)`; properties that begin with "on" are listeners. */
export function make(name, properties = {}, ...children) {
  return filled(document.createElement(name.split(".")[0]), name, properties, children);
}

/** Make an SVG element; its properties are attributes. */
export function draw(name, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, name.split(".")[0]), name, properties, children);
}

function filled(made, name, properties, children) {
  const classes = name.split(".").slice(1);
  if (classes.length) made.classList.add(...classes);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "data") Object.assign(made.dataset, value);
    else if (key in made && made.namespaceURI !== SVG && !key.startsWith("aria")) made[key] = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export const button = (text, act, properties = {}) => make("button", { type: "button", onclick: act, ...properties }, text);

/** Make a select of `[value, text]` pairs. */
export function choice(options, value, act, properties = {}) {
  const made = make("select", { onchange: () => act(made.value), ...properties },
    options.map(([of, text]) => make("option", { value: of, selected: of === value }, text)));
  return made;
}

let numbered = 0;

/** Make a control with its label. */
export function field(label, control, className = "") {
  control.id ||= `control-${++numbered}`;
  return make(`div.field${className ? `.${className}` : ""}`, {}, make("label", { htmlFor: control.id }, label), control);
}

export const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));

/** Format a measured number with three to five significant digits. */
export function measure(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  return size >= 100 ? value.toFixed(1) : size >= 10 ? value.toFixed(2) : value.toFixed(size >= 1 ? 3 : 4);
}

const SHARES = new Set(["accuracy", "exact_match", "macro_f1"]);

/** Format a metric by its name: fractions as per cent. */
export const metric = (name, value) => (SHARES.has(name) && typeof value === "number" ? `${(100 * value).toFixed(1)} %` : measure(value));

/** Format a change of a metric with its sign: fractions in percentage points. */
export function change(name, value) {
  if (value === null || value === undefined) return "–";
  return `${value > 0 ? "+" : value < 0 ? "−" : ""}${SHARES.has(name) ? (100 * Math.abs(value)).toFixed(1) : measure(Math.abs(value))}`;
}

export const words = (name) => name.replaceAll("_", " ");

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const option = (value) => (value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
