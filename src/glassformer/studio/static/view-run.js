// One run: status, curves, results and options.

import { ask, path } from "./api.js";
import { CurvePanel } from "./curve-panel.js";
import { tableFigure } from "./charts.js";
import { button, make, metric, number, option, words } from "./dom.js";
import { explained, figureFiles, panel, reportCommand, shellWords } from "./panel.js";
import { link } from "./route.js";
import { failure, working } from "./states.js";
import { describeRun, isRun } from "./subject.js";
import { progress, statusPill } from "./view-runs.js";

export async function showRun(root, { name, params, studio, signal }) {
  const row = await waitForRun(root, name, signal);
  if (row?.status === "failed") return showFailed(root, name, row);
  let about = await describeRun(name, signal);
  const state = make("div.run-state", { role: "status" });
  const rest = make("div.stack");
  const acts = make("div.actions");
  const showStatus = (status, step, total) => {
    const isLive = status === "running" || status === "stalled";
    state.replaceChildren(statusPill(status), progress({ step, total_steps: total, status }));
    acts.replaceChildren(
      ...(isLive ? [stopButton(name, acts)] : []),
      make("a.button", { href: link("inspect", name) }, "Inspect"), make("a.button", { href: link("probe", name) }, "Probe"),
      make("a.button", { href: link("film", name) }, "Film"), make("a.button", { href: link("compare", null, { a: name }) }, "Compare"),
      FAILED.has(status) && about.form ? tryAgain(about.form) : make("a.button", { href: link("new", null, { source: name }) }, "New run from this one"));
  };
  const showRest = () => rest.replaceChildren(...[logPanel(about), warningsPanel(about), resultsPanel(about, studio), optionsPanel(about)].filter(Boolean));
  const curves = new CurvePanel(params, signal, {
    height: 340, command: reportCommand(studio, [name]), smoothing: () => about.config["training.label_smoothing"] ?? 0, colourOf: () => row?.colour ?? 0,
    onStatus: async (eventLog) => {
      const hasChanged = eventLog.status !== about.status;
      showStatus(eventLog.status, eventLog.step, eventLog.total);
      if (!hasChanged) return;
      about.status = eventLog.status;
      about = await describeRun(name, signal);
      showRest();
    },
  });
  root.replaceChildren(
    make("div.view-head", {}, make("div", {}, make("p.crumb", {}, make("a", { href: link("runs") }, "← Runs")), make("h1", {}, name), state), acts),
    make("div.stack", {}, curves.element, rest));
  showStatus(about.status, about.step, about.total_steps);
  curves.show([name]);
  showRest();
}

/** Return the row of a run, and wait for the run if its training was just started. */
async function waitForRun(root, name, signal) {
  for (;;) {
    const row = (await ask("runs", { signal })).runs.find((run) => run.name === name);
    if (!row || isRun(row) || row.status === "failed") return row;
    if (!root.querySelector(".working")) root.replaceChildren(make("h1", {}, name), working("The training is starting…"));
    await new Promise((resolve) => setTimeout(resolve, 500));
    signal.throwIfAborted();
  }
}

/** Show a training that failed before it created a run: its error, its output, and the way back to the form. */
function showFailed(root, name, { error, log, form }) {
  root.replaceChildren(
    make("div.view-head", {}, make("div", {}, make("p.crumb", {}, make("a", { href: link("runs") }, "← Runs")), make("h1", {}, name), make("div.run-state", {}, statusPill("failed"))),
      make("div.actions", {}, form ? tryAgain(form) : make("a.button.primary", { href: link("new") }, "New run"))),
    make("div.stack", {}, errorBox("The training failed before it created a run.", error), panel("Output", {}, make("pre.log", {}, log || "The training printed nothing."))));
}

const FAILED = new Set(["crashed", "diverged", "damaged"]);

/** Link to the form of a run, with everything that was filled in. */
const tryAgain = ({ source, values }) => make("a.button.primary", {
  href: link("new", null, { source, set: Object.keys(values).length ? JSON.stringify(values) : null }),
}, "Change and try again");

const errorBox = (title, error) => make("div.failure", { role: "alert" }, make("p.failure-message", {}, title), error ? make("pre.log", {}, error) : null);

/** Show the error and the last output of a run that failed. */
function logPanel(about) {
  if (!about.log || !FAILED.has(about.status)) return null;
  return make("div.stack", {}, errorBox(`The run ${about.status}.`, about.error), panel("Last output", {}, make("pre.log", {}, about.log)));
}

function stopButton(name, acts) {
  const stop = button("Stop", async () => {
    stop.disabled = true;
    stop.textContent = "Stopping…";
    try {
      await ask(`runs/${path(name)}/stop`, { method: "POST", body: {} });
    } catch (error) {
      acts.after(failure(error));
    }
  }, { className: "danger", title: "Save a checkpoint and stop; the run can be resumed" });
  return stop;
}

function tablePanel(title, rows, name, command, shown) {
  return panel(title, { files: figureFiles(() => tableFigure(rows), () => rows), name, command }, shown);
}

/** Show the warnings about the data and the model, which belong to every score of the run. */
function warningsPanel({ warnings }) {
  if (!warnings.length) return null;
  return panel("Warnings", {}, make("ul.preview-notes", {}, warnings.map((text) => make("li.alarm", {}, text))));
}

function resultsPanel(about, studio) {
  const metrics = about.results?.metrics ?? {};
  const splits = Object.keys(metrics);
  if (!splits.length) return null;
  const names = [...new Set(splits.flatMap((split) => Object.keys(metrics[split])))];
  const rows = [["", ...names.map(words)], ...splits.map((split) => [split, ...names.map((name) => (name in metrics[split] ? metric(name, metrics[split][name]) : "–"))])];
  return tablePanel("Results", rows, "results", shellWords(["glassformer", "evaluate", `${studio.runs_shown}/${about.name}`, ...studio.plugin_words]), make("div.scroll", {}, make("table", {},
    make("thead", {}, make("tr", {}, rows[0].map((name, column) => make(column ? "th.number" : "th", { scope: "col" }, column ? explained(name, studio.metrics[names[column - 1]]) : name)))),
    make("tbody", {}, rows.slice(1).map(([split, ...values]) => make("tr", {}, make("th", { scope: "row" }, split), values.map((value) => make("td.number", {}, value))))))));
}

function optionsPanel(about) {
  const rows = Object.entries(about.config).map(([path, value]) => [path, option(value)]);
  const filter = make("input", {
    type: "search", placeholder: "Filter the options", "aria-label": "Filter the options", oninput: () => {
      for (const line of body.children) line.hidden = !line.textContent.toLowerCase().includes(filter.value.toLowerCase());
    },
  });
  const body = make("tbody", {}, rows.map(([path, value]) => make("tr", {}, make("th", { scope: "row" }, make("code", {}, path)), make("td", {}, make("code", {}, value)))));
  const checkpoints = about.checkpoints.map(({ step }) => number(step)).join(", ");
  return tablePanel("Options", [["option", "value"], ...rows], "options", about.command,
    make("div", {}, make("p.note", {}, checkpoints ? `Checkpoints at step ${checkpoints}` : "No checkpoint yet"), filter, make("div.scroll.tall", {}, make("table.options", {}, body))));
}
