// The exported model in ONNX Runtime Web: logits, greedy outputs and attention weights of one input.
//
// Whoever makes a Model gives it the runtime (`ort`) and a function that reads a file of the folder as bytes.

import { Text, showNumber } from "./text.js";

const parse = (bytes) => JSON.parse(new TextDecoder().decode(bytes));

/** Return the index of the largest value, the first of equal ones; values at `forbidden` indices do not count. */
function largest(values, forbidden = []) {
  let best = -1;
  for (let index = 0; index < values.length; index++) {
    if (!forbidden.includes(index) && (best < 0 || values[index] > values[best])) best = index;
  }
  return best;
}

/** Return the probabilities of logits. */
export function softmax(logits) {
  const most = Math.max(...logits);
  const odds = Array.from(logits, (value) => Math.exp(value - most));
  const sum = odds.reduce((total, each) => total + each, 0);
  return odds.map((each) => each / sum);
}

/** Last axis of a tensor with a batch of one: rows of a (1, L, V) tensor, or the one row of a (1, V) tensor. */
function rowsOf(tensor) {
  const width = tensor.dims.at(-1);
  return Array.from({ length: tensor.data.length / width }, (_, row) => tensor.data.subarray(row * width, (row + 1) * width));
}

export class Model {
  /** Load config, tokenizers and graphs. `read(name)` returns a promise of the bytes of a file. */
  static async load(ort, read) {
    const config = parse(await read("config.json"));
    const trees = {};
    for (const file of Object.keys(config.tokenizers)) trees[file] = parse(await read(file));
    const graphs = {};
    for (const name of config.graphs) graphs[name] = await ort.InferenceSession.create(await read(name), { executionProviders: ["wasm"] });
    return new Model(ort, config, new Text(config, trees), graphs);
  }

  constructor(ort, config, text, graphs) {
    Object.assign(this, { ort, config, text, graphs, output: config.output });
  }

  tokens(ids) {
    return new this.ort.Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]);
  }

  mask(length) {
    return new this.ort.Tensor("bool", new Uint8Array(length).fill(1), [1, length]);
  }

  emptyCache() {
    return new this.ort.Tensor("float32", new Float32Array(0), [1, ...this.config.empty_cache]);
  }

  /** Read an input with the graph that reads it as a whole: the encoder, or a model that does not generate. */
  async encode(ids) {
    const name = this.config.graphs[0];
    return this.graphs[name].run({ tokens: this.tokens(ids), mask: this.mask(ids.length) });
  }

  /** Start decoding: `source` has the outputs of the encoder, if there is one. */
  decoder(source = null, sourceLength = 0) {
    const graph = this.graphs[this.config.graphs.at(-1)];
    const state = { keys: this.emptyCache(), values: this.emptyCache(), length: 0 };
    const other = source
      ? { source_mask: this.mask(sourceLength), cross_keys: source.cross_keys, cross_values: source.cross_values }
      : {};
    return async (ids) => {
      state.length += ids.length;
      const own = { tokens: this.tokens(ids), mask: this.mask(state.length), keys: state.keys, values: state.values };
      const found = await graph.run({ ...own, ...other });
      state.keys = found.new_keys;
      state.values = found.new_values;
      return found;
    };
  }

  get generates() {
    return "end" in this.output;
  }

  /** Return the logits of an input, one row per token; `target` is the decoder's input of an encoder-decoder. */
  async logits(ids, target = null) {
    if (!this.generates) return rowsOf((await this.encode(ids)).outputs);
    const read = target ? this.decoder(await this.encode(ids), ids.length) : this.decoder();
    return rowsOf((await read(target ?? ids)).outputs);
  }

  /** Yield the greedy output token by token; the last one is the end token, unless the maximum length came first. */
  async *generate(ids) {
    const { begin, end, forbidden, max_length: most } = this.output;
    const isDecoder = begin !== undefined;
    const read = isDecoder ? this.decoder(await this.encode(ids), ids.length) : this.decoder();
    const limit = isDecoder ? most : Math.max(1, most - ids.length);
    let found = await read(isDecoder ? [begin] : ids);
    for (let count = 0; count < limit; count++) {
      const token = largest(rowsOf(found.outputs).at(-1), forbidden);
      yield token;
      if (token === end) return;
      if (count + 1 < limit) found = await read([token]);
    }
  }

  /**
   * Return the answer to token ids: output text, token ids, and the probabilities of classes. While the model
   * generates, `goesOn(text)` is awaited after each token; false stops the generation.
   */
  async predict(ids, goesOn = () => true) {
    const { kind, symbols, forbidden, end } = this.output;
    if (this.generates) {
      const generated = [], tokens = [];
      for await (const token of this.generate(ids)) {
        generated.push(token);
        if (token !== end) tokens.push(token);
        if (!(await goesOn(this.text.show(tokens)))) break;
      }
      return { output: this.text.show(tokens), tokens, generated };
    }
    const logits = await this.logits(ids);
    if (kind === "number") return { output: showNumber(logits[0][0], this.output.digits), tokens: [] };
    if (kind === "label") {
      const best = largest(logits[0]);
      return { output: symbols[best], tokens: [best], probabilities: softmax(logits[0]) };
    }
    let tokens = logits.map((row) => largest(row, forbidden));
    if (kind === "filled") tokens = tokens.map((token, index) => (ids[index] === this.config.input.mask ? token : ids[index]));
    return { output: this.text.show(tokens), tokens };
  }

  /**
   * Return the attention weights of an input and the tokens generated after it, by site: tensors (1, N, H, L, M).
   * The model does not read the last generated token.
   */
  async attention(ids, generated = []) {
    const read = generated.slice(0, -1);
    if (!this.generates) return { encoder: (await this.encode(ids)).encoder_attention };
    if (this.output.begin === undefined) return { encoder: (await this.decoder()([...ids, ...read])).encoder_attention };
    const source = await this.encode(ids);
    const found = await this.decoder(source, ids.length)([this.output.begin, ...read]);
    return { encoder: source.encoder_attention, decoder: found.decoder_attention, cross: found.cross_attention };
  }

  /** Return logits, token ids and outputs of examples, for the comparison with another engine. */
  async compare(examples, positions) {
    const found = { logits: [], inputs: [], tokens: [], texts: [] };
    for (const { text, tokens, target } of examples) {
      const rows = (await this.logits(tokens, target)).slice(-positions);
      found.logits.push(rows.map((row) => Array.from(row)));
      const ids = this.text.read(text), answer = await this.predict(ids);
      found.inputs.push(ids);
      found.tokens.push(answer.tokens);
      found.texts.push(answer.output);
    }
    return found;
  }
}
