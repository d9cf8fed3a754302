// View with all attention maps for one input, one of them large, with statistics and interventions.

import { button, field, make } from "./dom.js";
import { HeadPanel, TestPanel } from "./heads.js";
import { HintPanel } from "./hints.js";
import { StudioMaps } from "./maps.js";
import { showChecks, showGrid } from "./overview.js";
import { panel } from "./panel.js";
import { go, here, link, remember, wholeNumber } from "./route.js";
import { fill, working } from "./states.js";
import { chosenIn, loadRun, listenToKeys, makeDetail, requestOf, runNames, subjectBar } from "./subject.js";

export async function showInspector(root, { name, params, studio, signal }) {
  const [about, runs] = await Promise.all([loadRun(name, signal), runNames(signal)]);
  const untrained = make("input", { type: "checkbox", checked: params.get("untrained") === "1", onchange: () => bar.requestSubmit() });
  const bar = subjectBar({
    about, runs, params, extra: [field("Untrained control", untrained, "inline")],
    onRun: (run) => go("inspect", run),
    onSubmit: (asked) => go("inspect", name, { ...currentChoice(), ...asked, untrained: untrained.checked, decoding: params.get("decoding") }),
  });
  const body = make("div");
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
      tallest: () => Math.max(360, window.innerHeight - 380),
      onChoose: (site, layer, head) => this.chosen(site, layer, head),
      onCell: (cell) => this.cellChosen(cell),
    });
    const overview = panel("All maps", { trust: "fact", files: source.files(), name: `${name}-maps`, command: reply.command });
    overview.classList.add("overview");
    for (const site of Object.keys(source.sites)) overview.command.before(showGrid(overview, site, source, this.detail));
    this.tests = new TestPanel(name, request, this.detail, signal);
    this.heads = new HeadPanel(name, request, this.detail, signal);
    const checks = make("div.checks.note", {});
    showChecks(checks, reply);
    this.map = panel("Map", {
      trust: "fact", files: source.files(() => this.detail.chosen), name: `${name}-attention`, command: reply.command,
      tools: [button("[", () => this.detail.key("["), { className: "quiet", title: "Previous head ( [ )", "aria-label": "Previous head" }),
        button("]", () => this.detail.key("]"), { className: "quiet", title: "Next head ( ] )", "aria-label": "Next head" })],
    }, make("p.reading", { title: [reply.about?.input, reply.about?.output].filter(Boolean).join(" → ") }, make("span", {}, reply.about?.input ?? ""), reply.about?.output ? [make("span.arrow", {}, "→"), make("strong", {}, reply.about.output)] : null),
    this.detail.element, make("p.caption", {}, studio.caption), checks);
    const hints = new HintPanel(name, request, params, signal);
    this.element = make("div.inspector", {}, overview, make("div.stack", {}, this.map, hints.element), make("div.side", {}, this.tests.element, this.heads.element));
    const cell = { row: wholeNumber(params, "query"), column: wholeNumber(params, "key") };
    if (cell.row !== null && cell.column !== null) this.detail.cell = cell;
    listenToKeys(() => this.detail, signal);
    this.detail.choose(...chosenIn(source.sites, params)).then(() => { if (this.detail.cell) this.cellChosen(this.detail.cell); });
  }

  chosen(site, layer, head) {
    const of = this.source.sites[site];
    remember({ site, layer: String(of.layers[layer]), head: String(of.heads[head]), ...(this.detail.cell ? {} : { query: null, key: null }) });
    this.tests.show();
    this.heads.show();
  }

  cellChosen({ row, column }) {
    remember({ query: String(row), key: String(column) });
    this.tests.show();
  }
}
