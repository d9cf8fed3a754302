// Layout and axis labels of a large map: tokens if cells are large enough to read them, else positions.

const READABLE_CELL = 12;
const LARGEST_CELL = 120;
const LONGEST_LABEL = 110;
const SHORTEST_SIDE = 160;
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';

export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** Compute margins and map size in CSS pixels, the same at every zoom; cells are square if there is room. */
export function boxOf(context, site, width, tallest) {
  context.font = FONT;
  const widestOf = (tokens, least) => {
    const longest = tokens.reduce((found, token) => (token.length > found.length ? token : found), "");
    return clamp(context.measureText(longest).width, least, LONGEST_LABEL);
  };
  const queries = site.queries.length, keys = site.keys.length;
  const left = Math.ceil(12 + widestOf(site.queries, 30));
  const widest = Math.min(width - left - 10, LARGEST_CELL * keys);
  const highest = Math.min(tallest, LARGEST_CELL * queries);
  const cell = Math.min(widest / keys, highest / queries);
  const mapWidth = Math.floor(Math.max(cell * keys, Math.min(widest, SHORTEST_SIDE)));
  const mapHeight = Math.floor(Math.max(cell * queries, Math.min(highest, SHORTEST_SIDE)));
  const bottom = Math.ceil(10 + widestOf(site.keys, 14));
  return { width, left, top: 6, mapWidth, mapHeight, bottom };
}

/** Draw the frame of the map and the labels of the part that `view` shows. */
export function drawAxes(context, box, view, site, { ink, line }) {
  context.font = FONT;
  context.fillStyle = ink;
  context.strokeStyle = line;
  context.strokeRect(box.left - 0.5, box.top - 0.5, box.mapWidth + 1, box.mapHeight + 1);
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const [tick, text] of ticks(site.queries, view.row, view.rows, box.mapHeight, site.first_query, 26)) {
    context.fillText(text, box.left - 6, box.top + tick, box.left - 8);
  }
  const labels = ticks(site.keys, view.column, view.columns, box.mapWidth, 0, 44);
  const room = Math.max(box.mapWidth / view.columns, READABLE_CELL) - 3;
  const isUpright = box.mapWidth / view.columns >= READABLE_CELL
    && labels.some(([, text]) => context.measureText(text).width > room);
  for (const [tick, text] of labels) {
    const x = box.left + tick, y = box.top + box.mapHeight + 6;
    if (isUpright) {
      context.save();
      context.translate(x, y);
      context.rotate(-Math.PI / 2);
      context.fillText(text, 0, 0, LONGEST_LABEL);
      context.restore();
    } else {
      context.textAlign = "center";
      context.fillText(text, x, y + 7);
    }
  }
  if (Math.min(box.mapWidth / view.columns, box.mapHeight / view.rows) < READABLE_CELL) {
    context.textAlign = "left"; // numbers that could be taken for tokens
    context.fillText("position", 0, box.top + box.mapHeight + 13, box.left - 2);
  }
}

/** Return [pixel offset, text] of the labels of one axis: tokens if there is room, else round positions. */
function ticks(tokens, start, count, pixels, firstPosition, apart) {
  const cell = pixels / count, made = [];
  const first = Math.max(Math.floor(start), 0), last = Math.min(Math.ceil(start + count), tokens.length);
  let step = 1;
  if (cell < READABLE_CELL) {
    const wanted = apart / cell, scale = 10 ** Math.floor(Math.log10(Math.max(wanted, 1)));
    step = [1, 2, 5, 10].map((factor) => factor * scale).find((candidate) => candidate >= wanted);
  }
  for (let index = first; index < last; index++) {
    const tick = (index + 0.5 - start) * cell;
    if (tick < 0 || tick > pixels || (step > 1 && (index + firstPosition) % step)) continue;
    made.push([tick, cell >= READABLE_CELL ? tokens[index] : String(index + firstPosition)]);
  }
  return made;
}
