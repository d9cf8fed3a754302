// All runs: a live table, overlaid curves, and the options that differ.

import { ask, poll } from "./api.js";
import { tableFigure } from "./charts.js";
import { CurvePanel } from "./curve-panel.js";
import { seriesColour } from "./curves.js";
import { duration, make, metric, number, option, words } from "./dom.js";
import { figureFiles, panel, shellWords } from "./panel.js";
import { link, remember } from "./route.js";
import { empty, skeleton } from "./states.js";
import { isRun } from "./subject.js";

const SECONDS = 1.5;
const INITIAL_CHOICE = 3;
const MAX_DIFFERENCES = 3;

const STATUS = {
  starting: "is starting", failed: "failed before it created a run", new: "has not started", running: "is training", stalled: "its process is alive, but has made no progress for a while", stopped: "was stopped and can be resumed",
  crashed: "its process ended unexpectedly; the run can be resumed from its last checkpoint", damaged: "its files cannot be read", diverged: "its loss diverged", done: "has finished",
};

export const statusPill = (status) => make(`span.status.status-${status}`, { title: STATUS[status] ?? "" }, status);

export async function showRuns(root, { params, studio, signal }) {
  const view = { table: make("tbody"), chosen: null, known: "", signal };
  const differing = make("div");
  const curves = new CurvePanel(params, signal, { commandOf: (names) => shellWords(["glassformer", "report", ...names.map((name) => `${studio.runs_shown}/${name}`), "--out", "report.html", ...studio.plugin_words]) });
  let runs = [];
  const rows = () => tableRows(runs);
  const table = panel("All runs", { files: figureFiles(() => tableFigure(rows()), rows), name: "runs", command: shellWords(["glassformer", "runs", "--runs", studio.runs_shown]) },
    make("div.scroll", {}, make("table.runs", {}, make("thead", {}, make("tr", {},
      ["", "Run", "Status", "Result", "Loss", "Task", "Seed", "Parameters", "Time", "Options that differ"].map((name) => make("th", { scope: "col" }, name)))), view.table)));
  const chosen = () => [...view.chosen].filter((name) => runs.some((run) => run.name === name && isRun(run)));
  const choose = () => {
    remember({ select: chosen().join(",") || "none" });
    curves.show(chosen());
    fillTable(view, runs, choose);
    showDifferences(differing, chosen(), studio, signal);
  };
  root.replaceChildren(
    make("div.view-head", {}, make("div", {}, make("h1", {}, "Runs"), make("p.muted", { title: studio.runs_folder }, `in ${studio.runs_shown}`)),
      make("a.button.primary", { href: link("new") }, "New run")),
    make("div.stack", {}, skeleton(6, "Loading the runs")));
  await poll(async () => {
    runs = (await ask("runs", { signal })).runs;
    if (signal.aborted) return;
    if (!runs.length) {
      view.chosen = null;
      root.lastChild.replaceChildren(empty("No runs yet", `Runs in ${studio.runs_shown} appear here automatically, also if they are started in a terminal.`,
        make("a.button.primary", { href: link("new") }, "Start one"), make("code", {}, "glassformer train reversal")));
      return;
    }
    if (!view.chosen) {
      view.chosen = new Set(firstChoice(params, runs));
      root.lastChild.replaceChildren(curves.element, table, differing);
      curves.show(chosen());
      showDifferences(differing, chosen(), studio, signal);
    }
    fillTable(view, runs, choose);
  }, SECONDS, signal);
}

function firstChoice(params, runs) {
  const asked = params.get("select");
  if (asked !== null) return asked.split(",");
  const live = runs.filter((run) => run.status === "running"), others = runs.filter((run) => run.status !== "running" && isRun(run));
  return [...live, ...others].slice(0, INITIAL_CHOICE).map((run) => run.name);
}

function tableRows(runs) {
  return [["run", "status", "step", "result", "value", "loss", "task", "model", "seed", "parameters", "seconds", "options"],
    ...runs.map((run) => [run.name, run.status, run.step, run.primary_metric ? `${run.primary_metric.split} ${run.primary_metric.name}` : "", run.primary_metric?.value ?? "",
      run.last?.loss ?? "", run.task, run.model, run.seed, run.parameters, run.seconds,
      Object.entries(run.differences).map(([path, value]) => `${path}=${option(value)}`).join(" ")])];
}

function fillTable(view, runs, choose) {
  const state = JSON.stringify([runs, [...view.chosen]]);
  if (state === view.known) return;
  view.known = state;
  const focused = document.activeElement?.dataset?.run;
  const colours = new Map([...view.chosen].filter((name) => runs.some((run) => run.name === name)).map((name, index) => [name, index]));
  view.table.replaceChildren(...runs.map((run) => row(run, view, colours, choose)));
  if (focused) view.table.querySelector(`input[data-run="${CSS.escape(focused)}"]`)?.focus();
}

function row(run, view, colours, choose) {
  const box = make("input", {
    type: "checkbox", checked: view.chosen.has(run.name), disabled: !isRun(run), "aria-label": `curves of ${run.name}`, data: { run: run.name },
    onchange: () => { if (box.checked) view.chosen.add(run.name); else view.chosen.delete(run.name); choose(); },
  });
  const swatch = make("span.swatch");
  if (colours.has(run.name)) swatch.style.background = seriesColour(colours.get(run.name));
  const { primary_metric: primary } = run;
  return make("tr", { data: { run: run.name, status: run.status } },
    make("td.pick", {}, box, swatch),
    make("th", { scope: "row" }, make("a", { href: link("run", run.name) }, run.name)),
    make("td", {}, statusPill(run.status), progress(run)),
    make("td.number", {}, primary ? [make("strong", {}, metric(primary.name, primary.value)), make("div.note", {}, `${words(primary.name)}, ${primary.split}`)] : "–"),
    make("td.number", {}, run.last?.loss === undefined ? "–" : metric("loss", run.last.loss)),
    make("td", {}, option(run.task)),
    make("td.number", {}, option(run.seed)),
    make("td.number", {}, number(run.parameters)),
    make("td.number", {}, duration(run.seconds)),
    make("td", {}, run.error ? make("span.alarm.log", {}, run.error) : differences(run.differences)));
}

function differences(of) {
  const entries = Object.entries(of).filter(([path]) => path !== "seed");
  const shown = entries.slice(0, MAX_DIFFERENCES).map(([path, value]) => make("span.chip", { title: `${path}=${option(value)}` }, make("span.muted", {}, path.split(".").at(-1)), ` ${option(value)}`));
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

/** Show the options in which the chosen runs differ. */
async function showDifferences(root, names, studio, signal) {
  root.asked = names;
  if (names.length < 2) return root.replaceChildren();
  const query = names.map((name) => `run=${encodeURIComponent(name)}`).join("&");
  try {
    const { differences: found } = await ask(`compare?${query}`, { signal });
    if (root.asked !== names) return;
    const rows = [["option", ...names], ...Object.entries(found).map(([path, values]) => [path, ...names.map((name) => (name in values ? option(values[name]) : "–"))])];
    root.replaceChildren(panel("Differences", {
      files: figureFiles(() => tableFigure(rows), () => rows), name: "differences", command: shellWords(["glassformer", "runs", "compare", ...names.map((name) => `${studio.runs_shown}/${name}`)]),
    }, rows.length > 1
      ? make("div.scroll", {}, make("table.differences", {}, make("thead", {}, make("tr", {}, rows[0].map((name) => make("th", { scope: "col" }, name)))),
        make("tbody", {}, rows.slice(1).map(([path, ...values]) => make("tr", {}, make("th", { scope: "row" }, make("code", {}, path)), values.map((value) => make("td", {}, make("code", {}, value))))))))
      : make("p.muted", {}, "These runs have the same options.")));
  } catch (error) {
    if (!signal.aborted) root.replaceChildren(empty("The differences cannot be loaded", error.message));
  }
}
