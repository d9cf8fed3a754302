// View with all attention maps for one input, one of them large, with statistics and interventions.

import { path } from "./api.js";
import { button, field, make } from "./dom.js";
import { HeadPanel, TestPanel } from "./heads.js";
import { HintPanel } from "./hints.js";
import { StudioMaps } from "./maps.js";
import { showChecks, showGrid } from "./overview.js";
import { inputText, panel } from "./panel.js";
import { go, here, link, remember, wholeNumber } from "./route.js";
import { fill, inputWarning, working } from "./states.js";
import { TokenStrip } from "./strip.js";
import { chosenIn, goIfAccepted, loadRun, listenToKeys, makeDetail, requestOf, runNames, subjectBar } from "./subject.js";

/** Number of layers, of all sites, above which the small maps are as tall as the large one. */
const MANY_LAYERS = 3;

export async function showInspector(root, { name, params, studio, signal }) {
  const [about, runs] = await Promise.all([loadRun(name, signal), runNames(signal)]);
  const untrained = make("input", { type: "checkbox", checked: params.get("untrained") === "1", onchange: () => bar.requestSubmit() });
  const bar = subjectBar({
    about, runs, params, extra: [field("Untrained control", untrained, "inline")],
    onRun: (run) => go("inspect", run),
    onSubmit: (asked) => goIfAccepted("inspect", name, { ...currentChoice(), ...asked, untrained: untrained.checked, decoding: params.get("decoding") }, {
      requests: (of) => [[`runs/${path(name)}/attention`, requestOf(of)]], body, shown: params.get("input"), signal,
    }),
  });
  const body = make("div.result");
  const branch = params.get("node") === null ? null : make("p.note", {}, `Node ${params.get("node")} of the ${params.get("decoding") ?? ""} decoding. `,
    make("a", { href: link("inspect", name, { input: params.get("input"), checkpoint: params.get("checkpoint") }) }, "Show the output instead"));
  root.replaceChildren(make("h1.unseen", {}, "Inspector"), bar, ...(branch ? [branch] : []), body);
  const request = requestOf(params);
  await fill(body, working("Running the model and checking its maps…"), async () => {
    const source = await StudioMaps.take(name, request, signal);
    return new Inspector(name, about, request, source, params, studio, signal).element;
  }, signal);
}

/** Return the chosen head, to keep it for another input. The cell is not kept, because it may not exist there. */
function currentChoice() {
  const { params } = here();
  return { site: params.get("site"), layer: params.get("layer"), head: params.get("head") };
}

class Inspector {
  constructor(name, about, request, source, params, studio, signal) {
    Object.assign(this, { name, source, signal });
    const { reply } = source;
    this.detail = makeDetail(source, signal, {
      tallest: () => Math.max(360, window.innerHeight - 300),
      onChoose: (site, layer, head) => this.chosen(site, layer, head),
      onCell: (cell) => this.cellChosen(cell),
    });
    this.tests = new TestPanel(name, request, this.detail, studio.metrics, signal);
    this.heads = new HeadPanel(name, request, this.detail, about.explanations ?? {}, signal);
    this.tokens = new TokenStrip(this.detail, signal);
    const checks = make("div.checks.note", {});
    showChecks(checks, reply);
    this.map = panel("Map", {
      trust: "fact", files: source.files(() => this.detail.chosen), name: `${name}-attention`, command: reply.command,
      tools: this.turns(),
    }, inputWarning(reply.warning), make("p.reading", { title: [reply.about?.input, reply.about?.output].filter(Boolean).join(" → ") }, inputText(reply), reply.about?.output ? [make("span.arrow", {}, "→"), make("strong", {}, reply.about.output)] : null),
    this.detail.element, this.tokens.element, make("p.caption", {}, studio.caption), checks);
    const hints = new HintPanel(name, request, params, signal);
    // Two columns of similar height, with few or many small maps.
    const isTall = Object.values(source.sites).reduce((sum, { layers }) => sum + layers.length, 0) > MANY_LAYERS;
    this.element = make("div.inspector", {},
      make("div.stack", {}, this.map, isTall ? this.heads.element : null, hints.element),
      make("div.side", {}, this.overview(), this.tests.element, isTall ? null : this.heads.element));
    const cell = { row: wholeNumber(params, "query"), column: wholeNumber(params, "key") };
    if (cell.row !== null && cell.column !== null) this.detail.cell = cell;
    listenToKeys(() => this.detail, signal);
    this.detail.choose(...chosenIn(source.sites, params)).then(() => { if (this.detail.cell) this.cellChosen(this.detail.cell); });
  }

  /** Make the panel of small maps, unless the large map is the only one. */
  overview() {
    const { source } = this, sites = Object.entries(source.sites);
    if (sites.reduce((sum, [, { layers, heads }]) => sum + layers.length * heads.length, 0) < 2) return null;
    const made = panel("All maps", { trust: "fact", files: source.files(), name: `${this.name}-maps`, command: source.reply.command });
    made.classList.add("overview");
    const grids = make("div.grids");
    made.command.before(grids);
    for (const [site] of sites) showGrid(grids, site, source, this.detail);
    return made;
  }

  /** Make the buttons that turn to another head or layer, as far as there are several. */
  turns() {
    const sites = Object.values(this.source.sites);
    const turn = (text, key, title) => button(text, () => this.detail.key(key), { className: "quiet", title: `${title} (key ${key})` });
    return [
      ...(sites.some(({ layers }) => layers.length > 1) ? [turn("‹ Layer", "{", "Previous layer"), turn("Layer ›", "}", "Next layer")] : []),
      ...(sites.some(({ heads }) => heads.length > 1) ? [turn("‹ Head", "[", "Previous head"), turn("Head ›", "]", "Next head")] : []),
    ].map((made) => { made.setAttribute("aria-label", made.title.replace(/ \(.*/, "")); return made; });
  }

  chosen(site, layer, head) {
    const of = this.source.sites[site];
    remember({ site, layer: String(of.layers[layer]), head: String(of.heads[head]), ...(this.detail.cell ? {} : { query: null, key: null }) });
    this.tests.show();
    this.heads.show();
    this.tokens.show();
  }

  cellChosen({ row, column }) {
    remember({ query: String(row), key: String(column) });
    this.tests.show();
  }
}
