// Small SVG charts: bars with their numbers, and tables as pictures. Colours come from the style sheet.

import { draw } from "./dom.js";

const ROW = 26;
const LABEL_WIDTH = 132;
const VALUE_WIDTH = 60;

const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/**
 * Draw bars from 0 to `most`. A bar has `label`, `value` and `text`; optional are `mark` (a tick, such as the value
 * of uniform weights), `other` (a thin bar, such as the untrained model), `dot` (another measure), `interval` and
 * `isChosen`.
 */
export function bars(rows, { most = 1, width = 360, label = LABEL_WIDTH, value = VALUE_WIDTH, title = "", isStacked = false } = {}) {
  const row = isStacked ? 2 * ROW - 8 : ROW;
  const height = rows.length * row + 4;
  if (isStacked) label = 0;
  const room = width - label - value;
  const x = (size) => label + (Math.max(0, Math.min(size, most)) / most) * room;
  const svg = draw("svg.bars", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": described(rows, title) });
  rows.forEach((of, index) => drawBar(svg, of, index * row + 4, { isStacked, label, room, width, x }));
  return svg;
}

/** Draw one bar; a stacked bar has its label above it, over the full width. */
function drawBar(svg, row, above, { isStacked, label, room, width, x }) {
  const top = isStacked ? above + 18 : above;
  if (isStacked) svg.append(draw("text.bar-label", { x: 0, y: above + 13 }, shorten(row.label, Math.floor(width / 7))));
  else if (label) svg.append(draw("text.bar-label", { x: label - 10, y: top + 14, "text-anchor": "end" }, shorten(row.label, 20)));
  svg.append(draw("rect.bar-ground", { x: label, y: top + 4, width: room, height: 12, rx: 2 }));
  if (row.value !== null) {
    svg.append(draw(`rect.bar${row.isChosen ? ".is-chosen" : ""}`, { x: label, y: top + 4, width: Math.max(x(row.value) - label, 1), height: 12, rx: 2 }));
  }
  if (row.other !== undefined && row.other !== null) {
    svg.append(draw("rect.bar-other", { x: label, y: top + 17, width: Math.max(x(row.other) - label, 1), height: 3 }));
  }
  if (row.interval) {
    svg.append(draw("line.bar-interval", { x1: x(row.interval[0]), x2: x(row.interval[1]), y1: top + 10, y2: top + 10 }));
  }
  if (row.dot !== undefined && row.dot !== null) {
    svg.append(draw("circle.bar-dot", { cx: x(row.dot), cy: top + 10, r: 4 }));
  }
  if (row.mark !== undefined && row.mark !== null) {
    svg.append(draw("line.bar-mark", { x1: x(row.mark), x2: x(row.mark), y1: top + 1, y2: top + 19 }));
  }
  svg.append(draw("text.bar-value", { x: width, y: top + 14, "text-anchor": "end" }, row.text));
}

const described = (rows, title) => `${title}: ${rows.map((row) => `${row.label} ${row.text}`).join("; ")}`;

/** Draw a table as a picture. */
export function tableFigure(rows) {
  const widths = rows[0].map((_, column) => 16 + 7 * Math.min(40, Math.max(...rows.map((row) => String(row[column] ?? "").length))));
  const width = widths.reduce((sum, of) => sum + of, 16), height = rows.length * 24 + 16;
  const svg = draw("svg.table-figure", { viewBox: `0 0 ${width} ${height}` });
  rows.forEach((row, line) => {
    let x = 16;
    row.forEach((cell, column) => {
      svg.append(draw(line ? "text" : "text.is-head", { x, y: 24 + line * 24 }, shorten(String(cell ?? ""), 40)));
      x += widths[column];
    });
    svg.append(draw("line", { x1: 12, x2: width - 12, y1: 32 + line * 24, y2: 32 + line * 24 }));
  });
  return svg;
}
