// The page: views and navigation, light and dark theme, keyboard shortcuts.

import { ask } from "./api.js";
import { setPlotlyStyles } from "./curves.js";
import { button, make } from "./dom.js";
import { setScale } from "./maps.js";
import { KEYS } from "./overview.js";
import { isDark } from "./painting.js";
import { here, link, takeToken } from "./route.js";
import { empty, failure, skeleton } from "./states.js";
import { showCompare } from "./view-compare.js";
import { showExplain } from "./view-explain.js";
import { showFilm } from "./view-film.js";
import { showInspector } from "./view-inspect.js";
import { showNew } from "./view-new.js";
import { showProbe } from "./view-probe.js";
import { showRun } from "./view-run.js";
import { showRuns } from "./view-runs.js";

const VIEWS = {
  runs: { title: "Runs", show: showRuns },
  run: { title: "Run", show: showRun, of: "runs" },
  new: { title: "New run", show: showNew, of: "runs" },
  inspect: { title: "Inspector", show: showInspector, needsRun: true },
  explain: { title: "Explain", show: showExplain, needsRun: true },
  probe: { title: "Probe", show: showProbe, needsRun: true },
  film: { title: "Film", show: showFilm, needsRun: true },
  compare: { title: "Compare", show: showCompare },
};

const content = document.getElementById("content");
const notice = document.getElementById("notice");
let leaving = new AbortController();
let studio = null;

/** Name of the run that was shown last, which the other views open. */
let lastRun = null;

function showNavigation({ view, name }) {
  const shown = VIEWS[view]?.of ?? view;
  document.getElementById("views").replaceChildren(...Object.entries(VIEWS).filter(([, { of }]) => !of).map(([key, { title, needsRun }]) => {
    const target = key === "compare" && lastRun ? link(key, null, { a: lastRun }) : link(key, needsRun ? lastRun : null);
    return make("a", { href: target, "aria-current": key === shown ? "page" : null }, title);
  }));
  document.title = [name, VIEWS[view]?.title, "Glassformer"].filter(Boolean).join(" · ");
}

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const route = here();
  if (route.name && VIEWS[route.view]) lastRun = route.name;
  showNavigation(route);
  content.replaceChildren(make("div.view", {}, skeleton(6)));
  const view = VIEWS[route.view];
  const root = make(`div.view.view-${route.view}`);
  try {
    studio ??= await loadStudio(signal);
    if (signal.aborted) return;
    root.append(skeleton(8)); // until the view replaces it
    content.replaceChildren(root);
    if (!view) root.replaceChildren(empty("This view does not exist", location.hash, make("a.button", { href: "#/runs" }, "All runs")));
    else if (view.needsRun && !route.name) await chooseRun(root, route, signal);
    else await view.show(root, { ...route, studio, signal });
  } catch (error) {
    if (signal.aborted || error.name === "AbortError" || error.status === 401) return;
    const isGone = error.status === 404;
    content.replaceChildren(make("div.view", {}, failure(error, isGone ? null : show), isGone ? make("p.after", {}, make("a.button", { href: "#/runs" }, "All runs")) : null));
  }
}

async function loadStudio(signal) {
  const about = await ask("studio", { signal });
  await setScale(about);
  setPlotlyStyles(about.plotly_styles);
  return about;
}

/** Open the newest usable run in a view that needs one. */
async function chooseRun(root, { view }, signal) {
  const { runs } = await ask("runs", { signal });
  const usable = runs.find((run) => run.status !== "damaged" && run.step > 0);
  if (usable) location.replace(link(view, usable.name));
  else root.replaceChildren(empty("Nothing to inspect yet", "Train a model first. Then the studio shows its attention maps.",
    make("a.button.primary", { href: link("new") }, "New run")));
}

function showTokenHelp() {
  leaving.abort();
  content.replaceChildren(make("div.view", {}, empty(
    "Open the link that the terminal printed",
    "The studio accepts only requests with its token. The token is part of the link that “glassformer studio” prints, and is new for every start.")));
}

function showTheme() {
  const dark = isDark();
  const toggle = document.getElementById("theme");
  toggle.textContent = dark ? "Light" : "Dark";
  toggle.title = dark ? "Switch to light" : "Switch to dark";
}

function switchTheme() {
  const wanted = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = wanted;
  localStorage.setItem("glassformer.theme", wanted);
  showTheme();
}

function showHelp() {
  const dialog = document.getElementById("help");
  const rows = [...KEYS, [["p"], "play or pause the film"], [["?"], "show this list"]];
  dialog.replaceChildren(
    make("h2", { id: "help-title" }, "Keys"),
    make("dl.keys", {}, rows.map(([keys, meaning]) => [make("dt", {}, keys.map((key) => make("kbd", {}, key))), make("dd", {}, meaning)])),
    make("p.note", {}, studio?.caption ?? ""),
    make("form", { method: "dialog" }, button("Close", () => dialog.close(), { className: "primary" })));
  dialog.showModal();
}

function listen() {
  window.addEventListener("hashchange", show);
  // Requests of a view that was left are aborted; that is not an error.
  window.addEventListener("unhandledrejection", (event) => { if (event.reason?.name === "AbortError") event.preventDefault(); });
  window.addEventListener("glassformer:unauthorised", showTokenHelp);
  window.addEventListener("glassformer:unreachable", () => {
    notice.hidden = false;
    notice.textContent = "The studio does not respond. Check that it is still running in its terminal. This page may be out of date.";
  });
  window.addEventListener("glassformer:replied", () => { notice.hidden = true; });
  document.getElementById("theme").addEventListener("click", switchTheme);
  document.getElementById("keys").addEventListener("click", showHelp);
  document.getElementById("skip").addEventListener("click", () => content.focus());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
  document.addEventListener("keydown", (event) => {
    if (event.key === "?" && !event.target.closest("input, textarea, select")) showHelp();
  });
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });
}

takeToken();
listen();
showTheme();
show();
