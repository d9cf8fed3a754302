// Panels beside the large map: statistics of the chosen head (facts), and effects of interventions (causes).

import { ask, path, stoppable } from "./api.js";
import { bars } from "./charts.js";
import { button, change, choice, field, make, measure, metric, words } from "./dom.js";
import { headTitle } from "./overview.js";
import { commandLine, explained, figureFiles, panel, trust } from "./panel.js";
import { here, remember } from "./route.js";
import { failure, working } from "./states.js";

const EXAMPLES = 64;

/** Panel with statistics of a head for this input and, on request, averaged over examples and for the untrained model. */
export class HeadPanel {
  constructor(run, request, detail, explanations, signal) {
    Object.assign(this, { run, request, detail, explanations, signal, measured: null, figure: null, rows: [] });
    this.body = make("div");
    this.more = make("div");
    this.element = panel("Statistics of this head", {
      trust: "fact", name: `${run}-head`, command: detail.source.reply.command,
      files: figureFiles(() => this.figure, () => [["statistic", "value", "uniform", "untrained", "value-weighted"], ...this.rows]),
    }, this.body, this.more);
    this.offer();
    this.loadCached();
  }

  offer() {
    this.more.replaceChildren(make("div.actions", {}, button(`Measure over ${EXAMPLES} examples`, () => this.measure(), {
      title: "The same statistics, averaged over examples, and those of the untrained model",
    })));
  }

  get address() {
    return `runs/${path(this.run)}/heads`;
  }

  /** Load statistics that were measured before. */
  async loadCached() {
    try {
      const query = this.request.checkpoint ? `?checkpoint=${encodeURIComponent(this.request.checkpoint)}` : "";
      const known = await ask(this.address + query, { signal: this.signal });
      if (known) this.take(known);
    } catch {
      // The button to measure them remains.
    }
  }

  async measure() {
    const { signal, stop } = stoppable(this.signal);
    this.more.replaceChildren(working("Measuring…", stop));
    try {
      this.take(await ask(this.address, { body: { checkpoint: this.request.checkpoint, examples: EXAMPLES }, signal }));
    } catch (error) {
      if (this.signal.aborted) return;
      this.offer();
      if (!signal.aborted) this.more.append(failure(error));
    }
  }

  take(document) {
    this.measured = document;
    this.element.command.setText(document.command ?? null);
    this.more.replaceChildren();
    this.show();
  }

  /** Return the statistics over examples, with those of the untrained model, if they are known, else those for this input. */
  statistics() {
    const [name] = this.detail.chosen;
    const site = this.detail.source.sites[name], measured = this.measured?.sites?.[name];
    if (measured) return { of: measured, control: this.measured.untrained?.[name] ?? null, isMeasured: true };
    return { of: site.statistics, control: null, isMeasured: false };
  }

  /** Return the value of a statistic for this head, with its confidence interval if there is one. */
  at(statistic) {
    const [name, row, column] = this.detail.chosen, site = this.detail.source.sites[name];
    if (!statistic) return { value: null, interval: null };
    // For this input: lists of the shown layers and heads. Over examples: all layers and heads, by number.
    const isAverage = "mean" in statistic;
    const [layer, head] = isAverage ? [site.layers[row], site.heads[column]] : [row, column];
    const of = (nested) => nested?.[layer]?.[head] ?? null;
    return isAverage ? { value: of(statistic.mean), interval: of(statistic.interval) } : { value: of(statistic), interval: null };
  }

  show() {
    const { of, control, isMeasured } = this.statistics();
    const rows = [];
    const add = (label, statistic, uniform, other, weighted = null) => {
      const { value, interval } = this.at(statistic);
      if (value !== null) rows.push({ label, value, interval, mark: uniform(value), text: value.toFixed(3), other: control ? this.at(other).value : null, dot: this.at(weighted).value });
    };
    for (const [name, pattern] of Object.entries(of.patterns ?? {})) {
      const above = this.at(pattern.above_uniform).value;
      add(name, pattern.mass, (mass) => (above === null ? null : mass - above), control?.patterns?.[name]?.mass, pattern.value_weighted);
    }
    add("entropy", of.entropy, () => 1, control?.entropy);
    const { heads } = this.detail.source.sites[this.detail.chosen[0]];
    if (heads.length > 1) add("value share", of.value_share, () => 1 / heads.length, control?.value_share);
    this.rows = rows.map((row) => [row.label, row.value, row.mark, row.other, row.dot]);
    this.figure = bars(rows, { width: 320, label: 112, value: 44, title: "this head" });
    const distance = this.at(of.distance).value;
    const explain = (name, text = name) => explained(text, this.explanations[this.detail.chosen[0]]?.[name]);
    const legend = [make("span.key-mark", {}), "uniform weights", control ? [make("span.key-other", {}), "untrained"] : null,
      rows.some(({ dot }) => dot !== null) ? [make("span.key-dot"), explain("value-weighted")] : null];
    const lines = rows.map((row) => make("div.statistic", {}, explain(row.label), bars([row], { width: 300, label: 0, value: 44, title: row.label })));
    this.body.replaceChildren(
      make("p.note", {}, isMeasured ? `attention mass on a pattern, over ${this.measured.examples} examples` : "attention mass on a pattern, for this input"),
      make("div.statistics", {}, ...lines), make("div.note.bar-legend", {}, legend),
      distance === null ? "" : make("div.note", {}, explain("distance", "mean distance"), ` ${measure(distance)} positions`));
  }
}

/** Panel “Test this”: ablates a cell or a head, or hides a token, and runs the model again. */
export class TestPanel {
  constructor(run, request, detail, explanations, signal) {
    Object.assign(this, { run, request, detail, explanations, signal, results: [] });
    this.body = make("div");
    this.list = make("div.effects");
    const { params } = here();
    this.ablation = choice([["mean", "its mean"], ["zero", "zero"]], params.get("ablation") ?? "mean", (value) => remember({ ablation: value }));
    this.over = choice([["", "this input"], [String(EXAMPLES), `this input and ${EXAMPLES} examples of its length`]], params.get("over") ?? "", (value) => remember({ over: value }));
    this.element = panel("Test this", {
      trust: "cause", name: `${run}-tests`,
      files: figureFiles(() => this.drawing(), () => [["intervention", "metric", "before", "after", "low", "high"], ...this.rows()]),
    }, this.body, this.list);
  }

  show() {
    const { cell, source, chosen } = this.detail;
    const [site, layer, head] = chosen;
    const of = source.sites[site];
    const acts = [button(`Ablate ${headTitle(of, layer, head)}`, () => this.test("head", {}), { data: { test: "head" } })];
    if (cell) {
      const query = of.queries[cell.row], key = of.keys[cell.column];
      acts.unshift(button(`Ablate “${query}” → “${key}”`, () => this.test("edge", { query: cell.row + of.first_query, key: cell.column }), { className: "primary", data: { test: "edge" } }));
      acts.push(button(`Hide “${key}”`, () => this.test("token", { key: cell.column }), { data: { test: "token" } }));
    }
    this.body.replaceChildren(
      this.detail.readout, make("h3", {}, "Does the output depend on this?"), make("div.test-buttons", {}, ...acts),
      make("div.test-options", {}, cell ? field("Ablate a cell in", this.over, "inline") : null, field("Replace a head by", this.ablation, "inline")));
  }

  async test(kind, target) {
    const [site, layer, head] = this.detail.chosen, of = this.detail.source.sites[site];
    const { signal, stop } = stoppable(this.signal);
    const line = make("div.effect", {}, working("Running the model again…", stop));
    this.list.prepend(line);
    const examples = kind === "edge" && this.over.value ? Number(this.over.value) : null;
    try {
      const effect = await ask(`runs/${path(this.run)}/intervene`, {
        signal,
        body: {
          kind, input: this.request.input, checkpoint: this.request.checkpoint, site, layer: of.layers[layer], head: of.heads[head],
          ...target, ablation: this.ablation.value, examples,
        },
      });
      this.results.unshift(effect);
      line.replaceChildren(...shown(effect, this.explanations));
    } catch (error) {
      if (signal.aborted) line.remove();
      else line.replaceChildren(failure(error));
    }
  }

  rows() {
    return this.results.flatMap((effect) => Object.entries(effect.metrics).map(([name, of]) =>
      [effect.intervention, name, of.before, of.after, ...(of.interval ?? ["", ""])]));
  }

  drawing() {
    const rows = this.rows();
    const most = Math.max(1, ...rows.map(([, , before, after]) => Math.max(before ?? 0, after ?? 0)));
    return bars(rows.map(([, name, before, after]) => ({ label: words(name), value: after, mark: before, text: `${measure(before)} → ${measure(after)}` })), { most, width: 420, value: 120, title: "effects" });
  }
}

/** Return the elements that show an effect: the output before and after, then each metric with its interval. */
function shown(effect, explanations) {
  const { output } = effect;
  const hasChanged = output && output.before !== output.after;
  const lines = [make("header", {}, make("strong", {}, effect.intervention), trust(effect.trust ?? "cause"))];
  if (output) {
    lines.push(make("p.outputs", {}, hasChanged
      ? [make("del", {}, output.before), make("span.arrow", {}, "→"), make("ins", {}, output.after)]
      : [make("span", {}, output.after), make("span.note", {}, " – the output is unchanged")]));
  }
  if (effect.input_metrics) lines.push(...metricTable(effect.input_metrics, "this input", explanations));
  lines.push(...metricTable(effect.metrics, effect.examples === 1 ? "this input" : `${effect.examples} examples`, explanations));
  for (const note of effect.notes ?? []) lines.push(make("p.note", {}, note));
  if (effect.command) lines.push(commandLine(effect.command));
  return lines;
}

/** Return a table of each metric before and after, with the confidence interval of its change. */
function metricTable(metrics, title, explanations) {
  const entries = Object.entries(metrics ?? {});
  if (!entries.length) return [];
  const hasInterval = entries.some(([, of]) => of.interval);
  return [
    make("p.note", {}, `${title}${hasInterval ? " · right: 95 % confidence interval of the change" : ""}`),
    make("table", {}, make("tbody", {}, entries.map(([name, of]) => make("tr", {},
      make("th", { scope: "row" }, explained(words(name), explanations[name])),
      make("td.number", {}, `${metric(name, of.before)} → ${metric(name, of.after)}`),
      make("td.number", { title: "95 % confidence interval of the change" }, of.interval ? `${change(name, of.interval[0])} … ${change(name, of.interval[1])}` : ""))))),
  ];
}
