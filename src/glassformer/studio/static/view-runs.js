// All runs: a live table, overlaid curves, and the options that differ.

import { ask, poll } from "./api.js";
import { tableFigure } from "./charts.js";
import { CurvePanel } from "./curve-panel.js";
import { swatch } from "./curves.js";
import { choice, duration, field, make, metric, number, option, words } from "./dom.js";
import { figureFiles, panel, reportCommand, shellWords } from "./panel.js";
import { link, remember } from "./route.js";
import { empty, skeleton } from "./states.js";
import { isRun } from "./subject.js";

const SECONDS = 1.5;
const INITIAL_CHOICE = 3;
const MAX_DIFFERENCES = 4;
const SMOOTHING = "training.label_smoothing";
const COLUMNS = ["", "Run", "Status", "Result", "Training loss", "Seed", "Parameters", "Time", "Options that differ within the task"];

const STATUS = {
  starting: "is starting", failed: "failed before it created a run", new: "has not started", running: "is training", stalled: "its process is alive, but has made no progress for a while", stopped: "was stopped and can be resumed",
  crashed: "its process ended unexpectedly; the run can be resumed from its last checkpoint", damaged: "its files cannot be read", diverged: "its loss diverged", done: "has finished",
};

export const statusPill = (status) => make(`span.status.status-${status}`, { title: STATUS[status] ?? "" }, status);

export async function showRuns(root, { params, studio, signal }) {
  const view = { table: make("table.runs"), chosen: null, known: "", signal };
  const differing = make("div");
  const sweeps = make("p.note.sweeps", { hidden: true });
  const colours = new Map();
  const curves = new CurvePanel(params, signal, {
    colourOf: (name) => colours.get(name) ?? 0,
    commandOf: (names) => reportCommand(studio, names),
  });
  let runs = [], tasks = {};
  const rows = () => tableRows(runs);
  const filter = new RunFilter(params, () => fillTable(view, runs, tasks, filter, choose));
  const table = panel("All runs", { files: figureFiles(() => tableFigure(rows()), rows), name: "runs", command: shellWords(["glassformer", "runs", "--runs", studio.runs_shown]) },
    filter.element, make("div.scroll", {}, view.table), sweeps);
  const chosen = () => [...view.chosen].filter((name) => runs.some((run) => run.name === name && isRun(run)));
  const choose = () => {
    remember({ select: chosen().join(",") || "none" });
    curves.show(chosen());
    fillTable(view, runs, tasks, filter, choose);
    showDifferences(differing, chosen(), studio, signal);
  };
  root.replaceChildren(
    make("div.view-head", {}, make("div", {}, make("h1", {}, "Runs"), make("p.muted", { title: studio.runs_folder }, `in ${studio.runs_shown}`)),
      make("a.button.primary", { href: link("new") }, "New run")),
    make("div.stack", {}, skeleton(6, "Loading the runs")));
  await poll(async () => {
    const reply = await ask("runs", { signal });
    if (signal.aborted) return;
    ({ runs, tasks } = reply);
    showSweeps(sweeps, reply.groups, studio);
    if (!runs.length) {
      view.chosen = null;
      root.lastChild.replaceChildren(empty("No runs yet", `Runs in ${studio.runs_shown} appear here automatically, also if they are started in a terminal.`,
        make("a.button.primary", { href: link("new") }, "Start one"), make("code", {}, "glassformer train reversal")), sweeps);
      return;
    }
    for (const run of runs) colours.set(run.name, run.colour);
    curves.smoothing = (name) => {
      const run = runs.find((each) => each.name === name);
      return run?.differences[SMOOTHING] ?? tasks[run?.task]?.common[SMOOTHING] ?? 0;
    };
    filter.offer(runs);
    if (!view.chosen) {
      view.chosen = new Set(firstChoice(params, runs));
      root.lastChild.replaceChildren(curves.element, table, differing);
      curves.show(chosen());
      showDifferences(differing, chosen(), studio, signal);
    }
    fillTable(view, runs, tasks, filter, choose);
  }, SECONDS, signal);
}

/** Show how many sweeps and studies are in the folder, and how to see their runs. */
function showSweeps(root, groups, studio) {
  root.hidden = !groups.length;
  if (!groups.length) return;
  const listed = groups.map(({ name, runs }) => `${name} (${runs} ${runs === 1 ? "run" : "runs"})`).join(", ");
  const command = shellWords(["glassformer", "studio", "--runs", `${studio.runs_shown}/${groups[0].name}/runs`]);
  root.replaceChildren(`Sweeps and studies in this folder: ${listed}. To see their runs: `, make("code", {}, command));
}

/** Filter of the table: words to search for, a task and a status. The address stores them. */
class RunFilter {
  constructor(params, act) {
    this.search = make("input", {
      type: "search", value: params.get("search") ?? "", placeholder: "name, status or option, such as position=rotary", oninput: () => this.change(act),
    });
    this.task = choice([["", "all tasks"]], "", () => this.change(act));
    this.status = choice([["", "every status"]], "", () => this.change(act));
    this.asked = { task: params.get("task") ?? "", status: params.get("status") ?? "" };
    this.count = make("p.note", { role: "status" });
    this.element = make("div.run-filter", {}, field("Search", this.search, "grow"), field("Task", this.task), field("Status", this.status), this.count);
  }

  change(act) {
    this.asked = { task: this.task.value, status: this.status.value };
    remember({ search: this.search.value || null, ...this.asked });
    act();
  }

  /** Offer the tasks and states of these runs; a choice of the user stays, even if no run has it any more. */
  offer(runs) {
    for (const [name, all] of [["task", "all tasks"], ["status", "every status"]]) {
      const values = [...new Set([...runs.map((run) => run[name]), this.asked[name]])].filter(Boolean).sort();
      if (this[name].dataset.offered === values.join()) continue;
      this[name].dataset.offered = values.join();
      this[name].replaceChildren(...[["", all], ...values.map((value) => [value, value])].map(([value, text]) =>
        make("option", { value, selected: value === this.asked[name] }, text)));
    }
  }

  /** Return the runs that match: every word occurs in the name, task, status or an option `path=value`. */
  apply(runs, tasks) {
    const asked = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = runs.filter((run) => (!this.asked.task || run.task === this.asked.task)
      && (!this.asked.status || run.status === this.asked.status)
      && (!asked.length || matches(run, tasks[run.task], asked)));
    this.count.textContent = found.length === runs.length ? "" : `${found.length} of ${runs.length} runs`;
    return found;
  }
}

function matches(run, task, asked) {
  const options = Object.entries({ ...task?.common, ...run.differences });
  const texts = [run.name, run.task ?? "", run.status, ...options.flatMap(([path, value]) => {
    const shown = option(value);
    return path.endsWith(".kind") ? [`${path}=${shown}`, `${path.slice(0, -5)}=${shown}`] : [`${path}=${shown}`];
  })].map((text) => text.toLowerCase());
  return asked.every((word) => texts.some((text) => text.includes(word)));
}

function firstChoice(params, runs) {
  const asked = params.get("select");
  if (asked !== null) return asked.split(",");
  const live = runs.filter((run) => run.status === "running"), others = runs.filter((run) => run.status !== "running" && isRun(run));
  const [newest, ...older] = [...live, ...others];
  if (!newest) return [];
  return [newest, ...older.filter((run) => run.task === newest.task)].slice(0, INITIAL_CHOICE).map((run) => run.name); // curves of one task
}

function tableRows(runs) {
  return [["run", "status", "step", "result", "value", "loss", "task", "model", "seed", "parameters", "seconds", "options"],
    ...runs.map((run) => [run.name, run.status, run.step, run.primary_metric ? `${run.primary_metric.split} ${run.primary_metric.name}` : "", run.primary_metric?.value ?? "",
      run.last?.loss ?? "", run.task, run.model, run.seed, run.parameters, run.seconds,
      Object.entries(run.differences).map(([path, value]) => `${path}=${option(value)}`).join(" ")])];
}

function fillTable(view, all, tasks, filter, choose) {
  const runs = filter.apply(all, tasks);
  const state = JSON.stringify([runs, tasks, [...view.chosen]]);
  if (state === view.known) return;
  view.known = state;
  const focused = document.activeElement?.dataset?.run;
  const groups = Map.groupBy(runs, (run) => run.task);
  view.table.replaceChildren(
    make("thead", {}, make("tr", {}, COLUMNS.map((name) => make("th", { scope: "col" }, name)))),
    ...[...groups].map(([task, of]) => make("tbody", { data: { task: option(task) } },
      make("tr.task-head", {}, make("th", { scope: "rowgroup", colSpan: COLUMNS.length }, task ?? "not known yet", make("span.note", {}, `${of.length} ${of.length === 1 ? "run" : "runs"}`))),
      of.map((run) => row(run, view, tasks[task]?.labels ?? {}, choose)))),
    ...(runs.length ? [] : [make("tbody", {}, make("tr", {}, make("td.muted", { colSpan: COLUMNS.length }, "No run matches the search.")))]));
  if (focused) view.table.querySelector(`input[data-run="${CSS.escape(focused)}"]`)?.focus();
}

function row(run, view, labels, choose) {
  const box = make("input", {
    type: "checkbox", checked: view.chosen.has(run.name), disabled: !isRun(run), "aria-label": `curves of ${run.name}`, data: { run: run.name },
    onchange: () => { if (box.checked) view.chosen.add(run.name); else view.chosen.delete(run.name); choose(); },
  });
  const { primary_metric: primary } = run;
  return make("tr", { data: { run: run.name, status: run.status } },
    make("td.pick", {}, box, isRun(run) ? swatch(run.colour, view.chosen.has(run.name)) : null),
    make("th", { scope: "row" }, make("a", { href: link("run", run.name) }, run.name)),
    make("td", {}, statusPill(run.status), progress(run)),
    make("td.number", {}, primary ? [make("strong", {}, metric(primary.name, primary.value)), make("div.note", {}, `${words(primary.name)}, ${primary.split}`)] : "–"),
    make("td.number", {}, run.last?.loss === undefined ? "–" : metric("loss", run.last.loss)),
    make("td.number", {}, option(run.seed)),
    make("td.number", {}, number(run.parameters)),
    make("td.number", {}, duration(run.seconds)),
    make("td", {}, run.error ? make("span.alarm.log", {}, run.error.split("\n")[0]) : differences(run.differences, labels)));
}

function differences(of, labels) {
  const entries = Object.entries(of).filter(([path]) => path !== "seed");
  const shown = entries.slice(0, MAX_DIFFERENCES).map(([path, value]) => make("span.chip", { title: `${path}=${option(value)}` }, make("span.muted", {}, labels[path] ?? path), ` ${option(value)}`));
  if (entries.length > MAX_DIFFERENCES) {
    shown.push(make("span.chip.more", { title: entries.map(([path, value]) => `${path}=${option(value)}`).join("\n") }, `+${entries.length - MAX_DIFFERENCES}`));
  }
  return make("div.chips", {}, shown);
}

export function progress({ step, total_steps: total, status }) {
  const text = total ? `${number(step)} of ${number(total)}` : number(step);
  if (!total || status === "done") return make("div.note", {}, `step ${number(step)}`);
  return make("div.progress-line", { title: `step ${text}` }, make("progress", { max: total, value: step, "aria-label": `step ${text}` }), make("span.note", {}, text));
}

/** Show the options in which the chosen runs of each task differ. */
async function showDifferences(root, names, studio, signal) {
  root.asked = names;
  if (names.length < 2) return root.replaceChildren();
  const query = names.map((name) => `run=${encodeURIComponent(name)}`).join("&");
  try {
    const { tasks } = await ask(`compare?${query}`, { signal });
    if (root.asked !== names) return;
    const comparable = tasks.filter(({ runs }) => runs.length > 1);
    const rows = comparable.flatMap(({ task, runs, differences: found }) => [
      ["task", "option", ...runs], ...Object.entries(found).map(([path, values]) => [task, path, ...runs.map((name) => (name in values ? option(values[name]) : "–"))]),
    ]);
    root.replaceChildren(panel("Differences", {
      files: comparable.length ? figureFiles(() => tableFigure(rows), () => rows) : {}, name: "differences",
      command: shellWords(["glassformer", "runs", "compare", ...names.map((name) => `${studio.runs_shown}/${name}`)]),
      about: tasks.length > 1 ? "Runs of different tasks are compared within their task." : null,
    }, comparable.length ? comparable.map((group) => differenceTable(group, tasks.length > 1))
      : make("p.muted", {}, "Each of these runs has another task. Select two runs of the same task to compare their options.")));
  } catch (error) {
    if (!signal.aborted) root.replaceChildren(empty("The differences cannot be loaded", error.message));
  }
}

function differenceTable({ task, runs, differences: found }, isNamed) {
  const entries = Object.entries(found);
  return make("section", { data: { task } }, isNamed ? make("h3", {}, task) : null, entries.length
    ? make("div.scroll", {}, make("table.differences", {}, make("thead", {}, make("tr", {}, ["option", ...runs].map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, entries.map(([path, values]) => make("tr", {}, make("th", { scope: "row" }, make("code", {}, path)),
        runs.map((name) => make("td", {}, make("code", {}, name in values ? option(values[name]) : "–"))))))))
    : make("p.muted", {}, "These runs have the same options."));
}
