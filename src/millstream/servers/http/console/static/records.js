// Keys, values and headers of records: stored as bytes, shown by what they contain.

import { h } from "./dom.js";
import { bytes, moment, ago, visible, short, NOTHING } from "./format.js";
import { compact, parseExactly, pretty, Written } from "./json.js";

const TEXT_MAX = 64 * 1024;
const DETAIL_MAX = 256 * 1024;
const PREVIEW_MAX = 400;
const HEX_MAX = 512;

const utf8 = new TextDecoder("utf-8", { fatal: true });

function isPacked(value) {
  return (
    value !== null &&
    typeof value === "object" &&
    typeof value.base64 === "string" &&
    Object.keys(value).length === 1
  );
}

function unpacked(value) {
  try {
    return Uint8Array.from(atob(value.base64), (one) => one.charCodeAt(0));
  } catch {
    return new Uint8Array();
  }
}

function hex(data) {
  const shown = [...data.subarray(0, HEX_MAX)].map((one) => one.toString(16).padStart(2, "0"));
  return shown.join(" ") + (data.length > HEX_MAX ? " …" : "");
}

/** Kind and one-line text of a value in the format of its topic. */
function readFormatted(value, decoder) {
  // Bytes that happen to be a number in JSON come as that number.
  const isNumber = typeof value === "number" || value instanceof Written;
  if (!decoder || !(isPacked(value) || isNumber)) return read(value, false);
  const data = isNumber ? new TextEncoder().encode(compact(value)) : unpacked(value);
  try {
    const text = compact(decoder.decode(data));
    return { kind: "json", text, size: data.length, format: decoder.name };
  } catch (error) {
    return { ...read(value, false), problem: `not ${decoder.name}: ${error.message}` };
  }
}

/** Kind and one-line text of a key, a header or a value. */
function read(value, isText) {
  if (value === null || value === undefined) return { kind: "none", text: "", size: 0 };
  if (isPacked(value)) {
    const data = unpacked(value);
    try {
      return { kind: "text", text: utf8.decode(data), size: data.length };
    } catch {
      return { kind: "bytes", text: hex(data), size: data.length };
    }
  }
  if (isText && typeof value === "string") return { kind: "text", text: value, size: value.length };
  const text = compact(value);
  return { kind: "json", text, size: text.length };
}

function headerTexts(headers) {
  const found = [];
  for (const [name, value] of Object.entries(headers ?? {}))
    for (const one of Array.isArray(value) ? value : [value])
      found.push([name, read(one, true).text]);
  return found;
}

/** A record as the page keeps it: only texts, and only as much as can be shown. */
export class ShownRecord {
  constructor(topic, partition, record, decoder = null) {
    this.topic = topic;
    this.partition = partition;
    this.offset = record.offset;
    this.timestamp = record.timestamp;
    this.key = read(record.key, true);
    this.value = readFormatted(record.value, decoder);
    this.headers = headerTexts(record.headers);
    if (record.node !== undefined) this.headers.push(["millstream-node", String(record.node)]);
    this.isCut = this.value.text.length > DETAIL_MAX;
    if (this.isCut) this.value.text = this.value.text.slice(0, DETAIL_MAX);
    this.length = this.value.text.length + this.key.text.length;
  }

  /** The text that a search looks through. */
  get searched() {
    const headers = this.headers.map(([name, value]) => `${name}: ${value}`).join("\n");
    const text = `${this.key.text}\n${this.value.text.slice(0, TEXT_MAX)}\n${headers}`;
    return text.toLowerCase();
  }
}

/** Return a text with the matches marked. */
export function marked(text, search) {
  if (!search) return [text];
  const lowered = text.toLowerCase();
  const wanted = search.toLowerCase();
  // Some letters change their length in lower case; then positions would not match.
  if (lowered.length !== text.length) return [text];
  const found = [];
  let at = 0;
  for (let next = lowered.indexOf(wanted); next >= 0; next = lowered.indexOf(wanted, at)) {
    found.push(text.slice(at, next), h("mark", null, text.slice(next, next + wanted.length)));
    at = next + wanted.length;
  }
  found.push(text.slice(at));
  return found;
}

/** Return a key or a value on one line. */
export function preview(part, search) {
  if (part.kind === "none") return h("span.none", { title: "None" }, NOTHING);
  const text = aroundMatch(part.text, search);
  const shown = visible(short(text, PREVIEW_MAX));
  if (part.kind === "bytes")
    return h("span.bytes", null, h("span.tag", null, bytes(part.size)), " ", marked(shown, search));
  if (!shown) return h("span.none", null, "empty");
  return h("span.text", null, marked(shown, search));
}

/** Start a long text at the match, so that it is visible. */
function aroundMatch(text, search) {
  if (!search) return text;
  const at = text.toLowerCase().indexOf(search.toLowerCase());
  return at > PREVIEW_MAX / 2 ? `…${text.slice(at - 40)}` : text;
}

/** Return the details of a record. */
export function details(record, extra = []) {
  const rows = [
    ["Topic", record.topic],
    ["Partition", String(record.partition)],
    ["Offset", String(record.offset)],
    ["Timestamp", `${moment(record.timestamp)} (${ago(record.timestamp)})`],
    ["Value", record.value.kind === "none" ? "none" : `${record.value.format ?? kinds[record.value.kind]}, ${bytes(record.value.size)}`],
    ...(record.value.problem ? [["Format", record.value.problem]] : []),
    ...extra,
  ];
  const facts = h("dl.facts", null, rows.map(([name, text]) => [h("dt", null, name), h("dd", null, visible(text))]));
  const parts = [facts];
  if (record.key.kind !== "none") parts.push(block("Key", plain(record.key)));
  parts.push(block("Value", valueDetail(record)));
  if (record.headers.length) {
    const list = record.headers.map(([name, text]) => [
      h("dt", null, visible(name)),
      h("dd", null, visible(short(text, TEXT_MAX))),
    ]);
    parts.push(block("Headers", h("dl.facts.headers", null, list)));
  }
  return h("div.details", null, parts);
}

const kinds = { json: "JSON", text: "text", bytes: "bytes" };

function block(title, content) {
  return h("section.block", null, h("h4", null, title), content);
}

function valueDetail(record) {
  const { kind, text } = record.value;
  if (kind === "none") return h("p.none", null, "No value: in a compacted topic, a tombstone for its key.");
  if (kind === "json" && !record.isCut) {
    try {
      return pretty(parseExactly(text), DETAIL_MAX);
    } catch {
      return plain(record.value);
    }
  }
  return plain(record.value, record.isCut);
}

function plain(part, isCut = false) {
  const text = part.text.slice(0, DETAIL_MAX);
  return h("pre.json", null, visible(text, { keepsLines: true }), isCut ? "\n… truncated" : "");
}
