// Text to token ids and back, as the exported model was trained with: the same rules as text.py of an ONNX export.

const UNKNOWN = 1, UNTOLD = [0, 2, 3]; // padding, begin and end are not part of a text
const LISTED = 60; // characters of a list of unknown pieces
const CLEANED = [" .", " ?", " !", " ,", " ' ", " n't", " 'm", " do not", " 's", " 've", " 're"];

/** Character that stands for each byte in the pieces of a byte-level tokenizer. */
const CHARACTERS = (() => {
  const isPrintable = (byte) => (byte >= 33 && byte < 127) || (byte >= 161 && byte < 173) || byte >= 174;
  let others = 0;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isPrintable(byte) ? byte : 256 + others++));
})();
const BYTES = new Map(CHARACTERS.map((character, byte) => [character, byte]));

const isSpace = (text) => /^[ \t\n\r\f\v\x1c-\x1f\x85\p{Z}]*$/u.test(text);
const words = (text) => text.split(/[ \t\n\r\f\v\x1c-\x1f\x85\p{Z}]+/u).filter(Boolean);

/** Tokenizer of a `tokenizer.json`, applied as config.json describes. */
export class Tokenizer {
  constructor(tree, how) {
    const { model } = tree;
    this.how = how;
    this.unread = []; // pieces of the last texts that the model does not know
    this.splits = how.split.map((pattern) => new RegExp(pattern, "gu"));
    const entries = model.type === "Unigram" ? model.vocab.map(([piece], id) => [piece, id]) : Object.entries(model.vocab);
    const own = entries.filter(([, id]) => id >= how.reserved);
    this.ids = new Map(own);
    this.tokens = new Map(entries.map(([piece, id]) => [id, piece]));
    this.scores = new Map(model.type === "Unigram" ? own.map(([piece, id]) => [piece, model.vocab[id][1]]) : []);
    this.ranks = new Map((model.merges ?? []).map((merge, rank) => [Array.isArray(merge) ? merge.join(" ") : merge, rank]));
    this.longest = own.reduce((most, [piece]) => Math.max(most, piece.length), 0);
  }

  /** Return the token ids of a text, without begin and end. If it continues another, no space is added before it. */
  encode(given, continues = false) {
    let text = given.toWellFormed ? given.toWellFormed() : given;
    for (const [step, argument] of text ? this.how.normalize : []) {
      if (step !== "replace" && continues) continue;
      text = step === "replace" ? Array.from(text, (each) => (Object.hasOwn(argument, each) ? argument[each] : each)).join("") : argument + text;
    }
    let parts = text ? [text] : [];
    for (const split of this.splits) parts = parts.flatMap((part) => part.match(split) ?? []);
    if (this.how.has_bytes) parts = parts.map((part) => Array.from(new TextEncoder().encode(part), (byte) => CHARACTERS[byte]).join(""));
    const pieces = { WordLevel: this.word, BPE: this.merge, Unigram: this.best }[this.how.model].bind(this);
    return parts.flatMap(pieces);
  }

  word(word) {
    return [this.id(word)];
  }

  /** Return the id of a piece; one that the model does not know is kept for a warning. */
  id(piece) {
    const id = this.ids.get(piece);
    if (id === undefined) this.unread.push(piece);
    return id ?? UNKNOWN;
  }

  /** Merge the pair of the lowest rank, the leftmost first, until no pair can be merged. */
  merge(word) {
    const pieces = [...word];
    for (;;) {
      let lowest = Infinity, at = -1;
      for (let index = 0; index + 1 < pieces.length; index++) {
        const rank = this.ranks.get(`${pieces[index]} ${pieces[index + 1]}`) ?? Infinity;
        if (rank < lowest) [lowest, at] = [rank, index];
      }
      if (at < 0) return pieces.map((piece) => this.id(piece));
      pieces.splice(at, 2, pieces[at] + pieces[at + 1]);
    }
  }

  /** Return the pieces with the largest sum of scores. */
  best(word) {
    const letters = [...word];
    const best = [{ sum: 0, start: 0, id: 0 }];
    for (let start = 0; start < letters.length; start++) {
      if (!best[start]) continue;
      let piece = "";
      for (let end = start + 1; end <= Math.min(letters.length, start + this.longest); end++) {
        piece += letters[end - 1];
        const score = this.scores.get(piece);
        if (score === undefined) continue;
        const sum = best[start].sum + score;
        if (!best[end] || sum > best[end].sum) best[end] = { sum, start, id: this.ids.get(piece) };
      }
    }
    const ids = [];
    for (let at = letters.length; at > 0; at = best[at].start) {
      if (!best[at]) return [this.id(word)];
      ids.unshift(best[at].id);
    }
    return ids;
  }

  /** Return the text of token ids, without padding, begin and end. */
  decode(ids) {
    const { has_space_before: hasSpaceBefore, reserved } = this.how;
    const kept = ids.filter((id) => !UNTOLD.includes(id));
    let text = "";
    for (let start = 0, end = 0; start < kept.length; start = end) {
      const isText = kept[start] >= reserved;
      while (end < kept.length && kept[end] >= reserved === isText) end++;
      const run = kept.slice(start, end);
      const part = isText ? this.join(run) : run.map(() => this.how.unreadable).join(hasSpaceBefore ? " " : "");
      const hasSpace = isText ? this.how.joins_words || this.startsWithSpace(run[0]) : !text.endsWith(" ");
      text += text && hasSpace && hasSpaceBefore ? ` ${part}` : part;
    }
    return text;
  }

  startsWithSpace(id) {
    const [first] = this.tokens.get(id);
    return first === " " || first === "▁" || (this.how.has_bytes && first === CHARACTERS[32]);
  }

  join(ids) {
    let tokens = ids.map((id) => this.tokens.get(id));
    if (this.how.joins_words) tokens = tokens.map((token, index) => clean(index ? ` ${token}` : token));
    let text = tokens.join("");
    if (this.how.has_bytes) {
      const bytes = Uint8Array.from([...text], (character) => BYTES.get(character));
      text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
    }
    return this.how.has_space_before && text.startsWith(" ") ? text.slice(1) : text;
  }
}

/** Remove spaces before punctuation and contractions. */
function clean(token) {
  return CLEANED.reduce((text, found) => text.replaceAll(found, found === " do not" ? " don't" : found.trim()), token);
}

/** Error for an input that cannot be read. Its message is for the user. */
export class InputError extends Error {}

/** Reading of inputs and showing of outputs, as config.json describes. */
export class Text {
  constructor(config, trees) {
    this.input = config.input;
    this.output = config.output;
    this.tokenizers = Object.fromEntries(
      Object.entries(config.tokenizers).map(([file, how]) => [file, new Tokenizer(trees[file], how)]),
    );
    this.symbols = new Map((config.input.symbols ?? []).map((symbol, id) => [symbol, id]));
  }

  /** Return the token ids of an input; throw InputError if it cannot be read. */
  read(text) {
    const read = { text: this.readText, masked: this.readMasked, ids: this.readIds, numbers: this.readNumbers, symbols: this.readSymbols, expression: this.readExpression };
    const ids = read[this.input.kind].call(this, text);
    const most = this.input.max_length;
    if (ids.length > most) throw new InputError(`This is too long: ${ids.length} tokens, and the model reads ${most}.`);
    return ids;
  }

  /** Return a reason not to trust the output for an input, as `glassformer predict` prints it, or null. */
  warning(text, ids) {
    const { trained_length: trained, max_length: most, is_cut: isCut, before, after, unknown, untrained = [] } = this.input;
    const reasons = [];
    if (trained !== undefined && ids.length !== trained) {
      reasons.push(`the model was trained on sequences of ${trained} tokens, not of ${ids.length}`);
    }
    const tokenizer = this.tokenizers[this.input.tokenizer];
    if (isCut && ids.length === most) {
      const read = most - before.length - after.length, total = tokenizer.encode(text).length;
      if (total > read) reasons.push(`only the first ${counted(read)} of ${counted(total)} tokens are read`);
    }
    const count = ids.filter((id) => id === unknown).length;
    if (count) {
      if (tokenizer) tokenizer.unread = [];
      if (tokenizer) tokenizer.encode(text);
      const pieces = tokenizer ? tokenizer.unread.slice(0, count) : this.symbolsOf(text).filter((symbol) => !this.isKnown(symbol));
      reasons.push(`${count} of ${ids.length - (before?.length ?? 0) - (after?.length ?? 0)} tokens are unknown to the model${pieces.length ? `: ${marked(pieces)}` : ""}`);
    }
    const unseen = ids.filter((id) => untrained.includes(id));
    if (unseen.length) reasons.push(`unseen in training: ${marked(unseen.map((id) => tokenizer.decode([id])))}`);
    return reasons.join("; ") || null;
  }

  readText(text) {
    const { tokenizer, before, after, max_length: most, is_cut: isCut, may_be_blank: mayBeBlank } = this.input;
    const ids = this.tokenizers[tokenizer].encode(text);
    if (mayBeBlank ? !text : isSpace(text)) throw new InputError("Type an input first.");
    const room = most - before.length - after.length;
    return [...before, ...(isCut ? ids.slice(0, room) : ids), ...after];
  }

  readMasked(text) {
    const how = this.input, tokenizer = this.tokenizers[how.tokenizer];
    const parts = text.split(how.mask_name);
    if (parts.length < 2) throw new InputError(`Write ${how.mask_name} where the model should fill in a token.`);
    const hasSpace = tokenizer.how.has_space_before;
    const [first, ...others] = parts.map((part) => (hasSpace ? part.replace(/ +$/, "") : part));
    const ids = tokenizer.encode(first);
    for (const part of others) ids.push(how.mask, ...afterMask(tokenizer, part));
    return [...how.before, ...ids, ...how.after];
  }

  readIds(text) {
    const ids = words(text.replaceAll(",", " ")).map(Number);
    if (!ids.length || ids.some((id) => !Number.isInteger(id))) throw new InputError("Type token ids, such as 3 1 4.");
    return ids;
  }

  readNumbers(text) {
    const most = this.input.categories;
    let found = words(text.trim().replace(/^[[\]()]+|[[\]()]+$/g, "").replaceAll(",", " "));
    if (found.length === 1 && most <= 10 && /^[0-9]+$/.test(found[0])) found = [...found[0]];
    const isKnown = found.every((word) => /^[0-9]{1,19}$/.test(word) && Number(word) < most);
    if (!found.length || !isKnown) throw new InputError(`Type ${this.input.trained_length} numbers from 0 to ${most - 1}.`);
    return found.map(Number);
  }

  readSymbols(text) {
    const symbols = this.symbolsOf(text);
    if (!symbols.length) throw new InputError("Type an input first.");
    return symbols.map((symbol) => (this.isKnown(symbol) ? this.symbols.get(symbol) : this.input.unknown));
  }

  symbolsOf(text) {
    const { separator } = this.input;
    const found = separator === null ? words(text) : separator === "" ? [...text.trim()] : text.split(separator);
    return found.filter(Boolean);
  }

  isKnown(symbol) {
    return this.symbols.has(symbol) && !this.input.reserved.includes(symbol);
  }

  readExpression(text) {
    const how = this.input;
    const typed = Array.from(text, (each) => (Object.hasOwn(how.typed, each) ? how.typed[each] : each)).join("").trim();
    const match = new RegExp(`^(?:${how.pattern})$`, "i").exec(typed);
    const operation = match ? how.operations[match[2].toLowerCase()] : undefined;
    if (operation === undefined) throw new InputError("Type one operation between two numbers, such as 4 + -11.");
    return [...how.before, ...this.operand(match[1]), operation, ...this.operand(match[3]), ...how.after];
  }

  operand(text) {
    const how = this.input;
    const digits = text.replace(/\D/g, "").replace(/^0+/, "").slice(0, 20) || "0";
    const isNegative = (text.includes("-") || text.toUpperCase().includes("NEGATIVE")) && digits !== "0";
    const number = BigInt(isNegative ? `-${digits}` : digits);
    if (number < BigInt(how.smallest) || number > BigInt(how.largest)) {
      throw new InputError(`Operands range from ${how.smallest} to ${how.largest}.`);
    }
    return [how.signs[Number(isNegative)], ...Array.from(digits.padStart(how.digits, "0"), Number)];
  }

  /** Return output tokens as text. */
  show(ids) {
    const how = this.output;
    if (how.tokenizer) return this.tokenizers[how.tokenizer].decode(ids);
    const [sign, ...digits] = ids;
    if (how.signs?.includes(sign) && digits.length && Math.max(...digits) < 10) {
      return (sign === how.signs[1] ? "-" : "") + String(BigInt(digits.join("")));
    }
    return ids.map((id) => how.symbols[id]).join(how.separator);
  }
}

const counted = (number) => number.toLocaleString("en-US");

/** Return pieces of a text in marks, each once; a long list is shortened. */
function marked(pieces) {
  const text = [...new Set(pieces.map((piece) => `‹${piece.trim() || piece}›`))].join(" ").trim().replace(/\s+/g, " ");
  return text.length <= LISTED ? text : `${text.slice(0, LISTED - 1)}…`;
}

/** Return the ids of the text after a mask; no space is added before it. */
function afterMask(tokenizer, text) {
  const hasSpaceBefore = tokenizer.how.has_space_before;
  if (hasSpaceBefore && text.startsWith(" ")) return tokenizer.encode(text.slice(1));
  return tokenizer.encode(text, hasSpaceBefore);
}

/** Return a number with some significant digits, as Python's format `.6g` does for six. */
export function showNumber(number, digits) {
  if (!Number.isFinite(number)) return String(number).toLowerCase().replace("infinity", "inf");
  if (number === 0) return Object.is(number, -0) ? "-0" : "0";
  const [mantissa, exponent] = number.toExponential(digits - 1).split("e");
  const power = Number(exponent);
  if (power >= -4 && power < digits) {
    return number.toFixed(digits - 1 - power).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
  }
  const short = mantissa.replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
  return `${short}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
}
