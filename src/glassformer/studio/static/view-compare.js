// View that compares the maps of two runs, checkpoints or inputs: A, B and B − A.

import { path } from "./api.js";
import { choice, field, make } from "./dom.js";
import { Difference, StudioMaps } from "./maps.js";
import { csv, panel, shellWords } from "./panel.js";
import { go, here, link, remember } from "./route.js";
import { empty, fill, inputWarning, skeleton, working } from "./states.js";
import { checkpointOptions, chosenIn, goIfAccepted, loadRun, listenToKeys, makeDetail, runNames } from "./subject.js";

const SIDES = ["a", "b"];

export async function showCompare(root, { params, studio, signal }) {
  root.replaceChildren(make("h1.unseen", {}, "Compare"));
  const body = make("div", {}, skeleton(6));
  root.append(body);
  const runs = await runNames(signal);
  if (!runs.length) return body.replaceChildren(empty("Nothing to compare yet", "Train a model first.", make("a.button.primary", { href: link("new") }, "New run")));
  const names = { a: params.get("a") ?? runs[0], b: params.get("b") ?? params.get("a") ?? runs[0] };
  const abouts = await Promise.all(SIDES.map((side) => loadRun(names[side], signal)));
  const result = make("div.result");
  const submit = (values) => goIfAccepted("compare", null, values, {
    requests: (of) => SIDES.map((side) => [`runs/${path(names[side])}/attention`, requestOf(side, of)]), body: result, shown: params.get("a-input"), signal,
  });
  const bars = SIDES.map((side, index) => sideBar(side, abouts[index], runs, params, names, submit));
  body.replaceChildren(make("div.sides", {}, ...bars), result);
  await fill(result, working("Running both models…"), async () => {
    const sources = [];
    for (const [index, side] of SIDES.entries()) sources.push(await StudioMaps.take(abouts[index].name, requestOf(side, params), signal));
    return new Comparison(sources, params, studio, signal).element;
  }, signal);
}

/** Read the request for one side. B uses A's input unless it has its own. If nothing is chosen for B, it is A untrained. */
function requestOf(side, params) {
  const isBare = !params.get("b") && !params.has("b-checkpoint") && !params.has("b-input") && !params.has("b-untrained");
  return {
    input: params.get(`${side}-input`) || params.get("a-input") || null,
    checkpoint: params.get(`${side}-checkpoint`) || null,
    untrained: side === "b" && isBare ? true : params.get(`${side}-untrained`) === "1",
  };
}

function sideBar(side, about, runs, params, names, submit) {
  const request = requestOf(side, params);
  const state = () => {
    const current = Object.fromEntries(here().params);
    const values = { ...current, a: names.a, b: names.b };
    for (const key of SIDES) values[`${key}-untrained`] ??= requestOf(key, here().params).untrained ? "1" : "0";
    return values;
  };
  const input = make("input.mono", { type: "text", value: params.get(`${side}-input`) ?? "", placeholder: side === "b" ? "the same input" : about.examples?.[0] ?? "the first test example", autocomplete: "off", spellcheck: false });
  const untrained = make("input", { type: "checkbox", checked: request.untrained, onchange: () => form.requestSubmit() });
  const checkpoint = choice(checkpointOptions(about), params.get(`${side}-checkpoint`) ?? "", () => form.requestSubmit());
  const form = make("form.subject.side-bar", {
    "aria-label": side.toUpperCase(),
    onsubmit: (event) => {
      event.preventDefault();
      submit({ ...state(), [`${side}-input`]: input.value, [`${side}-checkpoint`]: checkpoint.value, [`${side}-untrained`]: untrained.checked ? "1" : "0" });
    },
  }, make(`span.side-name.side-${side}`, {}, side.toUpperCase()),
  field("Run", choice(runs.map((name) => [name, name]), about.name, (run) => go("compare", null, { ...state(), [side]: run, [`${side}-checkpoint`]: null }))),
  field("Checkpoint", checkpoint), field("Input", input, "grow"), field("Untrained", untrained, "inline"), make("button", { type: "submit" }, "Show"));
  return form;
}

class Comparison {
  constructor(sources, params, studio, signal) {
    Object.assign(this, { sources, signal });
    const difference = new Difference(...sources);
    const shared = Object.keys(difference.sites);
    if (!shared.length) {
      this.element = incomparable(sources, params);
      return;
    }
    this.all = [...sources, difference];
    this.where = make("div.row-controls");
    this.details = this.all.map((source) => makeDetail(source, signal, {
      tallest: () => Math.max(240, window.innerHeight * 0.5),
      onCell: (cell) => this.link(cell), onChoose: () => {},
    }));
    this.details.forEach((detail) => { detail.key = (key) => this.key(key, detail); });
    const titles = ["A", "B", "B − A"];
    this.panels = this.details.map((detail, index) => panel(titles[index], {
      trust: "fact", name: `compare-${["a", "b", "difference"][index]}`, command: sources[index]?.reply.command ?? null,
      files: sources[index] ? sources[index].files(() => detail.chosen) : this.differenceFiles(difference, detail),
      about: sources[index] ? about(sources[index]) : "scale from −1 to 1; blue: A attends more, orange: B attends more",
    }, inputWarning(sources[index]?.reply.warning), detail.element));
    this.element = make("div", {}, this.where, make("div.three", {}, ...this.panels), make("p.caption", {}, studio.caption));
    listenToKeys(() => this.details[0], signal);
    this.choose(...chosenIn(difference.sites, params), params);
  }

  async choose(name, layer, head, params = null) {
    const site = this.all[2].sites[name];
    remember({ site: name, layer: String(site.layers[layer]), head: String(site.heads[head]) });
    const pick = (list, at, act, label) => field(label, choice(list.map((of, number) => [String(number), String(of)]), String(at), (value) => act(Number(value))), "inline");
    this.where.replaceChildren(
      field("Maps", choice(Object.entries(this.all[2].sites).map(([key, of]) => [key, of.name]), name, (value) => this.choose(value, 0, 0)), "inline"),
      pick(site.layers, layer, (value) => this.choose(name, value, head), "Layer"), pick(site.heads, head, (value) => this.choose(name, layer, value), "Head"));
    this.panels[2].command.setText(differenceCommand(this.sources, name, layer, head));
    await Promise.all(this.details.map((detail) => detail.choose(name, layer, head)));
    const [query, key] = ["query", "key"].map((axis) => params?.get(axis));
    if (query && key) this.details[2].select(Number(query), Number(key));
  }

  /** Change head or layer in all three maps. */
  key(key, detail) {
    const [name, layer, head] = detail.chosen, { layers, heads } = this.all[2].sites[name];
    const turn = (value, count, by) => (value + by + count) % count;
    if (key === "[" || key === "]") this.choose(name, layer, turn(head, heads.length, key === "[" ? -1 : 1));
    else if (key === "{" || key === "}") this.choose(name, turn(layer, layers.length, key === "{" ? -1 : 1), head);
    else return Object.getPrototypeOf(detail).key.call(detail, key);
    return true;
  }

  /** Select a cell in all maps. */
  link(cell) {
    if (this.isLinking) return;
    this.isLinking = true;
    remember({ query: String(cell.row), key: String(cell.column) });
    for (const detail of this.details) if (detail.cell?.row !== cell.row || detail.cell?.column !== cell.column) detail.select(cell.row, cell.column);
    this.isLinking = false;
  }

  differenceFiles(difference, detail) {
    const canvas = () => {
      const made = make("canvas", { width: detail.canvas.width, height: detail.canvas.height });
      const context = made.getContext("2d");
      context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--surface").trim();
      context.fillRect(0, 0, made.width, made.height);
      context.drawImage(detail.canvas, 0, 0);
      return made;
    };
    return {
      png: () => new Promise((resolve) => canvas().toBlob(resolve, "image/png")),
      svg: async () => {
        const { width, height } = detail.canvas;
        return new Blob([`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}"><image width="${width}" height="${height}" href="${canvas().toDataURL("image/png")}"/></svg>`], { type: "image/svg+xml" });
      },
      csv: async () => {
        const { site, chosen } = detail, keys = site.keys.length;
        const values = await difference.values(...chosen, 0, site.queries.length);
        return csv([["query", "query token", "key", "key token", "B minus A"], ...Array.from(values, (value, at) => {
          const [row, column] = [Math.floor(at / keys), at % keys];
          return [row + site.first_query, site.queries[row], column, site.keys[column], value];
        })]);
      },
    };
  }
}

/** Explain why no map of A has the size of one of B, and offer inputs that both can read. */
function incomparable(sources, params) {
  const [a, b] = sources.map(({ sites }) => sites), title = "These maps cannot be compared";
  const both = Object.keys(a).filter((site) => site in b);
  if (!both.length) {
    return empty(title, `The models have no attention site in common: A has ${Object.keys(a).join(" and ")}, B has ${Object.keys(b).join(" and ")}.`);
  }
  const size = ({ queries, keys }) => (queries.length === keys.length ? `${keys.length} tokens` : `${queries.length} × ${keys.length} tokens`);
  const lengths = both.map((site) => `${a[site].name}: A has ${size(a[site])}, B has ${size(b[site])}`).join("; ");
  const inputs = sources.map(({ reply }) => reply.about?.input);
  const offers = inputs[0] === inputs[1] ? [] : SIDES.map((side, index) => make("a.button", {
    href: link("compare", null, { ...Object.fromEntries(params), "a-input": inputs[index], "b-input": inputs[index] }),
  }, `Use the input of ${side.toUpperCase()} for both`));
  return empty(title, `Their inputs have different numbers of tokens. ${lengths}.`, ...offers);
}

/** Return a command that saves both maps and prints their difference. */
function differenceCommand(sources, name, layer, head) {
  const saved = sources.map(({ reply }, side) => reply.command.replace("--out map.png", `--out ${SIDES[side]}.npz`));
  const program = `import numpy; a, b = (numpy.load(f"{side}.npz")["${name}.weights"][${layer}, ${head}] for side in "ab"); print(b - a)`;
  return [...saved, shellWords(["python", "-c", program])].join(" && ");
}

const about = ({ reply }) => [reply.about?.run, reply.about?.checkpoint].filter(Boolean).join(" · ");
