// A position in bytes, with the reads that decoders share.

import { Written } from "../json.js";

const utf8 = new TextDecoder("utf-8", { fatal: true });

/** Nested values and items of lists that are decoded: a few bytes can announce billions. */
const DEPTH_MAX = 128;
const ITEMS_MAX = 100_000;

/** Reads bytes from the start; throws at their end. */
export class BytesReader {
  #items = 0;
  #depth = 0;

  constructor(data) {
    this.data = data;
    this.view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    this.at = 0;
  }

  get isAtEnd() {
    return this.at === this.data.length;
  }

  /** Return the position, and go on by `size` bytes. */
  step(size) {
    const at = this.at;
    if (size < 0 || at + size > this.data.length) throw new Error("the value ends too early");
    this.at += size;
    return at;
  }

  byte() {
    return this.data[this.step(1)];
  }

  bytes(size) {
    const at = this.step(size);
    return this.data.subarray(at, at + size);
  }

  text(size) {
    try {
      return utf8.decode(this.bytes(size));
    } catch {
      throw new Error("a string is not valid UTF-8");
    }
  }

  /** Count one more item; throws if there are too many. */
  note() {
    this.#items += 1;
    if (this.#items > ITEMS_MAX) throw new Error(`the value has more than ${ITEMS_MAX} items`);
  }

  /** Read something nested. */
  nested(read) {
    this.#depth += 1;
    if (this.#depth > DEPTH_MAX) throw new Error("the value is nested too deeply");
    const found = read();
    this.#depth -= 1;
    return found;
  }
}

/** A whole number as JSON can show it. */
export function whole(value) {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : new Written(String(value));
}

/** A floating-point number as JSON can show it, which has no infinity. */
export function float(value) {
  return Number.isFinite(value) ? value : String(value);
}

/** Bytes as JSON can show them. */
export function packed(data) {
  let text = "";
  for (const one of data) text += String.fromCharCode(one);
  return { base64: btoa(text) };
}
