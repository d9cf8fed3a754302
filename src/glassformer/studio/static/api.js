// Requests to the studio's server, with the token, readable errors, and retries while the server is busy.

const MAX_ATTEMPTS = 6;

/** Error for a request that the server refused. */
export class Refused extends Error {
  constructor(status, { message, path = null, value = null, allowed = null, hint = null }, errors = []) {
    super(message);
    Object.assign(this, { name: "Refused", status, path, value, allowed, hint, errors });
  }
}

/** Error for a server that cannot be reached. */
export class Unreachable extends Error {
  constructor() {
    super("The studio does not respond.");
    this.name = "Unreachable";
    this.hint = "check that it is still running in its terminal. The page continues by itself when the studio is back.";
  }
}

const wait = (milliseconds, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, milliseconds);
  signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
});

const prepared = new Map();

/** Send requests, `[path, body]`, before the view that needs their replies is shown: the next `ask` of each gets its reply. */
export async function prepare(requests, signal) {
  const replies = [];
  for (const [path, body] of requests) replies.push([path + JSON.stringify(body), await ask(path, { body, signal })]);
  prepared.clear(); // only for the view that is shown next
  for (const [key, reply] of replies) prepared.set(key, reply);
}

function takePrepared(key) {
  const reply = prepared.get(key);
  prepared.delete(key);
  return reply;
}

export async function ask(path, { body, method = body ? "POST" : "GET", signal, as = "json" } = {}) {
  const ready = body && takePrepared(path + JSON.stringify(body));
  if (ready) return ready;
  for (let attempt = 1; ; attempt++) {
    const reply = await send(path, { body, method, signal });
    window.dispatchEvent(new CustomEvent("glassformer:replied"));
    if (reply.status === 204) return null;
    if (reply.ok) return as === "response" ? reply : reply[as]();
    const busy = reply.status === 429 || reply.status === 503;
    if (busy && attempt < MAX_ATTEMPTS) {
      await wait(1000 * Math.min(Number(reply.headers.get("Retry-After")) || 1, 10), signal);
      continue;
    }
    throw await refusal(reply);
  }
}

async function send(path, { body, method, signal }) {
  const headers = { Authorization: `Bearer ${localStorage.getItem("glassformer.token") ?? ""}` };
  if (body) headers["Content-Type"] = "application/json";
  try {
    return await fetch(`/api/${path}`, { method, headers, signal, body: body && JSON.stringify(body), cache: "no-store" });
  } catch (error) {
    if (signal?.aborted) throw error;
    window.dispatchEvent(new CustomEvent("glassformer:unreachable"));
    throw new Unreachable();
  }
}

async function refusal(reply) {
  let document = {};
  try {
    document = await reply.json();
  } catch {
    // The reply is not ours; only its status is known.
  }
  if (reply.status === 401) window.dispatchEvent(new CustomEvent("glassformer:unauthorised"));
  return new Refused(reply.status, document.error ?? { message: `The studio replied with status ${reply.status}.` }, document.errors ?? []);
}

/** Return a signal that aborts when the view is left, or earlier when `stop` is called. */
export function stoppable(signal) {
  const own = new AbortController();
  return { signal: AbortSignal.any([signal, own.signal]), stop: () => own.abort() };
}

export const path = (...parts) => parts.map(encodeURIComponent).join("/");

/** Call `act` every `seconds` seconds until the view is left, and less often while the page is hidden. */
export async function poll(act, seconds, signal) {
  while (!signal.aborted) {
    try {
      await act();
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Unreachable)) throw error;
    }
    await wait(1000 * (document.hidden ? 10 * seconds : seconds), signal).catch(() => {});
  }
}
