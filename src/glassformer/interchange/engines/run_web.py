"""Engine of the target `web`: open an exported folder in Chromium, or run its scripts in Node.js.

Usage: python run_web.py FOLDER REQUEST ANSWER
"""

import json
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MILLISECONDS = 600_000
COMPARE = """async ({ examples, positions }) => {
  const { loadModel } = await import("./app.js");
  const model = await loadModel();
  const first = model.config.examples[0];
  const shown = (await model.predict(model.text.read(first))).output;
  return { ...(await model.compare(examples, positions)), shown };
}"""


class QuietHandler(SimpleHTTPRequestHandler):
    """Static files, as `python -m http.server` serves them, without a log."""

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


def in_chromium(folder: str, request: dict[str, Any]) -> dict[str, Any]:
    """Open the page, wait for its first answer, then compare all examples inside it."""
    from playwright.sync_api import sync_playwright

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{server.server_port}/"
    urls: list[str] = []
    errors: list[str] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=request["browser"], args=FLAGS)
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MILLISECONDS)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda each: urls.append(each.url))
        page.goto(origin)
        page.wait_for_selector("#status.problem, .map-detail .map-canvas")
        status = page.inner_text("#status.problem") if page.query_selector("#status.problem") else ""
        if status or errors:
            raise RuntimeError(f"the page reports: {status or errors[0]}")
        found: dict[str, Any] = page.evaluate(
            COMPARE, {key: request[key] for key in ("examples", "positions")}
        )
        shown = page.eval_on_selector("#answer .output", "each => each.textContent")
        version = browser.version
        browser.close()
    server.shutdown()
    if shown != found["shown"]:
        raise RuntimeError(f"the page shows {shown!r}, and the model's output is {found['shown']!r}")
    foreign = [url for url in urls if not url.startswith((origin, "data:"))]
    if foreign or errors:
        raise RuntimeError(f"the page requests {foreign[0]}" if foreign else errors[0])
    return {**found, "version": version, "engine": "ONNX Runtime Web in Chromium"}


def in_node(folder: str, request_path: str, request: dict[str, Any], answer: str) -> dict[str, Any]:
    """Run the scripts of the folder without its page."""
    script = Path(__file__).with_suffix(".mjs")
    subprocess.run([request["node"], script, folder, request_path, answer + ".raw"], check=True)
    found = json.loads(Path(answer + ".raw").read_text(encoding="utf-8"))
    return {**found, "engine": "ONNX Runtime Web in Node.js (no browser)"}


def main(folder: str, request_path: str, answer: str) -> None:
    """Compare the examples in a browser if the request names one, else in Node.js."""
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    if request["browser"]:
        found = in_chromium(folder, request)
    else:
        found = in_node(folder, request_path, request, answer)
    rows = [np.array(each, dtype=np.float64) for each in found.pop("logits")]
    logits = [row[0] if request["is_whole"] else row for row in rows]
    np.savez(answer + ".npz", **{str(number): row for number, row in enumerate(logits)})  # type: ignore[arg-type]
    Path(answer + ".json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
