// Page to try a served model. Text of models and users is only ever set as text, never as markup.

const find = (id) => document.getElementById(id);
const show = (id, isShown) => { find(id).hidden = !isShown; };
const make = (tag, text, properties = {}) => Object.assign(document.createElement(tag), { textContent: text, ...properties });

const KEY = "glassformer.serve.token";
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", location.pathname);
}
const token = sessionStorage.getItem(KEY);
const headers = { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) };

let runs = [];
let controller = null;

const chosen = () => runs.find((run) => run.id === find("run").value);
const completes = (run) => run.endpoints.includes("/v1/completions");
const number = (id) => Number(find(id).value);

function body(run) {
  const text = find("input").value;
  if (!completes(run)) return { ...(runs.length > 1 ? { run: run.id } : {}), inputs: text };
  return { model: run.id, prompt: text, max_tokens: number("length"), temperature: number("temperature"), stream: true };
}

const path = (run) => (completes(run) ? "/v1/completions" : "/v1/predict");
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function showCommand() {
  const run = chosen();
  if (!run) return;
  const key = token ? ` -H 'Authorization: Bearer ${token}'` : "";
  const noBuffer = completes(run) ? " -N" : "";
  find("command").textContent =
    `curl${noBuffer} ${location.origin}${path(run)}${key} -H 'Content-Type: application/json' -d ${quoted(JSON.stringify(body(run)))}`;
}

function showRun() {
  const run = chosen();
  const languages = run.languages ? `, ${run.languages.join(" → ")}` : "";
  find("about").textContent = `${run.task}${languages}, reads up to ${run.max_length} tokens`;
  const buttons = run.examples.map((text) => {
    const button = make("button", text, { type: "button", className: "example", title: text });
    button.addEventListener("click", () => { find("input").value = text; showCommand(); find("form").requestSubmit(); });
    return button;
  });
  find("examples").replaceChildren("Examples from its data", ...buttons);
  show("examples", buttons.length > 0);
  show("sampling", completes(run));
  find("input").value = run.examples[0] ?? "";
  show("result", false);
  show("error", false);
  showCommand();
}

function showError(error) {
  find("error").textContent = typeof error === "string" ? error : [error.message, error.hint && `Try: ${error.hint}`].filter(Boolean).join("\n");
  show("error", true);
}

async function refuse(reply) {
  const document = await reply.json().catch(() => ({}));
  showError(document.error ?? `The server replied with status ${reply.status}.`);
}

function showPrediction(prediction) {
  if (prediction.error !== null) { showError(prediction.error); return; }
  find("output").textContent = String(prediction.output);
  const rows = Object.entries(prediction.probabilities ?? {}).map(([label, value]) => {
    const row = make("tr", "");
    const bar = make("td", "");
    bar.append(make("progress", "", { max: 1, value, ariaLabel: `probability of ${label}` }));
    row.append(make("th", label, { scope: "row" }), bar, make("td", value.toFixed(3), { className: "number" }));
    return row;
  });
  find("probabilities").replaceChildren(...rows);
  show("probabilities", rows.length > 0);
  find("warning").textContent = prediction.warning ?? "";
  show("warning", prediction.warning !== null);
  show("result", true);
}

async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (waiting + value).split("\n\n");
    waiting = parts.pop();
    for (const part of parts) if (part !== "data: [DONE]") yield JSON.parse(part.slice("data: ".length));
  }
}

async function showStream(reply, prompt) {
  const generated = make("span", "");
  find("output").replaceChildren(make("span", prompt, { className: "prompt" }), generated);
  show("probabilities", false);
  show("warning", false);
  show("result", true);
  for await (const event of events(reply)) {
    if (event.error) { showError(event.error); return; }
    generated.append(event.choices[0]?.text ?? "");
  }
}

async function send(submitted) {
  submitted.preventDefault();
  const run = chosen();
  show("error", false);
  controller = new AbortController();
  find("send").disabled = true;
  show("stop", completes(run));
  const start = performance.now();
  try {
    const options = { method: "POST", headers, body: JSON.stringify(body(run)), signal: controller.signal };
    const reply = await fetch(path(run), options);
    if (!reply.ok) { await refuse(reply); return; }
    if (completes(run)) await showStream(reply, find("input").value);
    else showPrediction((await reply.json()).predictions[0]);
    find("facts").textContent = `${Math.round(performance.now() - start)} ms`;
  } catch (error) {
    if (error.name !== "AbortError") showError("The server does not answer. Does it still run?");
  } finally {
    find("send").disabled = false;
    show("stop", false);
  }
}

async function begin() {
  const reply = await fetch("/v1/models", { headers });
  if (!reply.ok) {
    find("send").disabled = true;
    if (reply.status === 401) showError("This server needs a token. Open the link that its terminal printed.");
    else await refuse(reply);
    return;
  }
  runs = (await reply.json()).data;
  find("run").replaceChildren(...runs.map((run) => make("option", run.id, { value: run.id })));
  showRun();
}

find("run").addEventListener("change", showRun);
find("form").addEventListener("submit", send);
find("form").addEventListener("input", showCommand);
find("stop").addEventListener("click", () => controller?.abort());
find("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("form").requestSubmit();
});
find("openapi").addEventListener("click", async (event) => {
  event.preventDefault();
  const reply = await fetch("/openapi.json", { headers });
  const text = JSON.stringify(await reply.json(), null, 2);
  location.assign(URL.createObjectURL(new Blob([text], { type: "application/json" })));
});
begin().catch(() => showError("The server does not answer. Does it still run?"));
