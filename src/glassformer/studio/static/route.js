// URL of a view: `#/view/name?key=value`. All state that is worth sharing is in the URL.

/** Move the token of the launch link from the URL into local storage. */
export function takeToken() {
  const found = /^#token=([^&]+)/.exec(location.hash);
  if (!found) return;
  localStorage.setItem("glassformer.token", decodeURIComponent(found[1]));
  history.replaceState(null, "", `${location.pathname}#/runs`);
}

export function here() {
  write();
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [view = "", ...rest] = path.split("/");
  const name = rest.length ? safely(rest.join("/")) : null;
  return { view: view || "runs", name, params: new URLSearchParams(query) };
}

function safely(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function link(view, name = null, params = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "" && value !== false) query.set(key, value === true ? "1" : value);
  }
  const path = name === null ? view : `${view}/${encodeURIComponent(name)}`;
  return `#/${path}${query.size ? `?${query}` : ""}`;
}

export function go(view, name = null, params = {}) {
  location.hash = link(view, name, params);
}

const WRITE_AFTER = 100;
let pending = null;

/** Write changes into the URL without leaving the view; quick changes are written together. */
export function remember(changes) {
  const page = location.hash.split("?")[0];
  if (pending?.page !== page) pending = { page, changes: {} };
  Object.assign(pending.changes, changes);
  clearTimeout(pending.timer);
  pending.timer = setTimeout(write, WRITE_AFTER);
}

function write() {
  if (!pending) return;
  const { page, changes, timer } = pending;
  clearTimeout(timer);
  pending = null;
  if (location.hash.split("?")[0] !== page) return; // another view is open now
  const { view, name, params } = here();
  history.replaceState(null, "", `${location.pathname}${link(view, name, { ...Object.fromEntries(params), ...changes })}`);
}

export const wholeNumber = (params, key, fallback = null) =>
  /^\d+$/.test(params.get(key) ?? "") ? Number(params.get(key)) : fallback;
