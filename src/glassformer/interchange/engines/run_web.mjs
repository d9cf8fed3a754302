// Engine of the target `web` in Node.js: run an exported folder with ONNX Runtime Web, one example at a time.
//
// Usage: node run_web.mjs FOLDER REQUEST ANSWER

import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, requestPath, answerPath] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(join(folder, name)).href);
const ort = await load("ort/ort.wasm.min.mjs");
const { Model } = await load("model.js");
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = pathToFileURL(join(folder, "ort/")).href;
ort.env.wasm.wasmBinary = await readFile(join(folder, "ort/ort-wasm-simd-threaded.wasm"));
const model = await Model.load(ort, (name) => readFile(join(folder, name)));
const { examples, positions } = JSON.parse(await readFile(requestPath, "utf-8"));
await writeFile(answerPath, JSON.stringify({ ...(await model.compare(examples, positions)), version: process.version }));
