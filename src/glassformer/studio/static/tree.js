// Beam search as a tree: one column per step, with chosen and dropped nodes.

import { draw } from "./dom.js";

const COLUMN = 128;
const LINE = 30;
const LONGEST = 10;

/** Assign a line to each node: each output has its own line, and dropped nodes are next to their parent. */
function placed(nodes) {
  const children = new Map(nodes.map((node) => [node.id, []]));
  const roots = [];
  for (const node of nodes) (node.parent === null ? roots : children.get(node.parent)).push(node);
  const worth = (node) => (node.state === "chosen" ? 0 : node.state === "dropped" ? 2 : 1);
  const order = (list) => [...list].sort((first, second) => worth(first) - worth(second) || second.total - first.total);
  const rows = new Map(), taken = [];
  const isFree = (line, step) => !taken[line]?.has(step);
  const waiting = order(roots).map((node) => [node, 0]);
  while (waiting.length) {
    const [node, least] = waiting.shift();
    let line = least;
    while (!isFree(line, node.step)) line += 1;
    rows.set(node.id, line);
    (taken[line] ??= new Set()).add(node.step);
    waiting.unshift(...order(children.get(node.id)).map((child) => [child, line]));
  }
  return { rows, lines: taken.length };
}

export function beamTree(nodes, step, choose) {
  const { rows, lines } = placed(nodes);
  const steps = Math.max(...nodes.map((node) => node.step)) + 1;
  const width = steps * COLUMN + 16, height = lines * LINE + 28;
  const svg = draw("svg.beam-tree", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${nodes.length} nodes in ${steps} steps` });
  const x = (node) => 8 + node.step * COLUMN, y = (node) => 34 + rows.get(node.id) * LINE;
  svg.append(draw("rect.here", { x: 4 + step * COLUMN, y: 0, width: COLUMN - 4, height, rx: 4 }));
  for (let column = 0; column < steps; column++) svg.append(draw("text.step", { x: 12 + column * COLUMN, y: 14 }, String(column + 1)));
  const byId = new Map(nodes.map((node) => [node.id, node]));
  for (const node of nodes) {
    if (node.parent === null) continue;
    const from = byId.get(node.parent), left = x(from) + COLUMN - 16, right = x(node), middle = (left + right) / 2;
    svg.append(draw(`path.is-${node.state}`, { d: `M${left} ${y(from)} C${middle} ${y(from)} ${middle} ${y(node)} ${right} ${y(node)}` }));
  }
  for (const node of nodes) {
    const isHere = node.step === step && node.state === "chosen";
    const group = draw(`g.is-${node.state}${isHere ? ".is-here" : ""}`, { transform: `translate(${x(node)} ${y(node)})`, data: { x: x(node) }, onclick: () => choose(node) },
      draw("title", {}, `“${node.token}” · ${node.state} · log-probability ${node.log_probability.toFixed(3)}, total ${node.total.toFixed(3)}`),
      draw("rect", { x: 0, y: -11, width: COLUMN - 16, height: 22, rx: 4 }),
      draw("text", { x: 6, y: 4 }, node.token.length > LONGEST ? `${node.token.slice(0, LONGEST - 1)}…` : node.token || "∅"),
      draw("text.total", { x: COLUMN - 21, y: 4, "text-anchor": "end" }, node.total.toFixed(1)));
    svg.append(group);
  }
  return svg;
}

export const treeRows = (nodes) => [["node", "parent", "step", "token", "log-probability", "total", "state"],
  ...nodes.map((node) => [node.id, node.parent, node.step, node.token, node.log_probability, node.total, node.state])];
