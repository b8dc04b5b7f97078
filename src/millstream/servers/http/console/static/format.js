// Formatting of numbers, sizes, times and texts for people. The exact value goes into the title.

const PLACES = new Intl.NumberFormat("en-US");
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const COUNT_UNITS = ["", "k", "M", "G", "T", "P"];
const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

export const NOTHING = "–";

function isNothing(value) {
  return value === null || value === undefined || Number.isNaN(value);
}

/** 1234567 as 1,234,567. */
export function exact(value) {
  return isNothing(value) ? NOTHING : PLACES.format(value);
}

function scaled(value, base, units, separator) {
  let unit = 0;
  let rest = Math.abs(value);
  // 999.6 would be shown as 1000, which belongs to the next unit.
  while (rest >= base - 0.5 && unit < units.length - 1) {
    rest /= base;
    unit += 1;
  }
  const digits = rest >= 100 || (unit === 0 && Number.isInteger(rest)) ? 0 : rest >= 10 ? 1 : 2;
  const text = rest.toFixed(digits);
  return `${value < 0 ? "-" : ""}${text}${units[unit] ? separator + units[unit] : ""}`;
}

/** 1234567 as 1.23 M; up to four digits are shown in full. */
export function count(value) {
  if (isNothing(value)) return NOTHING;
  if (Number.isInteger(value) && Math.abs(value) < 10_000) return exact(value);
  return scaled(value, 1000, COUNT_UNITS, " ");
}

/** 1536 as 1.50 KiB. */
export function bytes(value) {
  return isNothing(value) ? NOTHING : scaled(value, 1024, BYTE_UNITS, " ");
}

/** A rate without its unit, where the context has it. */
export function perSecond(value) {
  if (isNothing(value)) return NOTHING;
  if (value === 0) return "0";
  if (value < 0.1) return "<0.1";
  return value < 10 && !Number.isInteger(value) ? value.toFixed(1) : count(Math.round(value));
}

export function bytesPerSecond(value) {
  return isNothing(value) ? NOTHING : bytes(Math.round(value));
}

/** A rate with its unit: 12.3 k/s. */
export function rate(value) {
  return isNothing(value) ? NOTHING : `${perSecond(value)}/s`;
}

export function byteRate(value) {
  return isNothing(value) ? NOTHING : `${bytesPerSecond(value)}/s`;
}

export function percent(value) {
  return isNothing(value) ? NOTHING : `${value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}

/** Milliseconds of a latency: 0.42 ms, 18 ms, 1.20 s. */
export function latency(ms) {
  if (isNothing(ms)) return NOTHING;
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  return `${ms >= 100 ? ms.toFixed(0) : ms >= 10 ? ms.toFixed(1) : ms.toFixed(2)} ms`;
}

/** A duration: 3 d 4 h, 12 min, 8 s. */
export function duration(ms) {
  if (isNothing(ms)) return NOTHING;
  if (ms < 0) return `-${duration(-ms)}`;
  if (ms < SECOND) return `${Math.round(ms)} ms`;
  if (ms < MINUTE) return `${Math.floor(ms / SECOND)} s`;
  if (ms < HOUR) return two(ms, MINUTE, "min", SECOND, "s", 10);
  if (ms < DAY) return two(ms, HOUR, "h", MINUTE, "min", 10);
  return two(ms, DAY, "d", HOUR, "h", 30);
}

function two(ms, large, largeName, little, littleName, largeMax) {
  const first = Math.floor(ms / large);
  const second = Math.floor((ms % large) / little);
  const isShort = first >= largeMax || second === 0;
  return isShort ? `${first} ${largeName}` : `${first} ${largeName} ${second} ${littleName}`;
}

/** A time as its age. */
export function ago(timestamp, now = Date.now()) {
  if (isNothing(timestamp) || timestamp < 0) return NOTHING;
  const since = now - timestamp;
  if (Math.abs(since) < SECOND) return "just now";
  return since < 0 ? `in ${duration(-since)}` : `${duration(since)} ago`;
}

/** A full time in the local time zone. */
export function moment(timestamp) {
  if (isNothing(timestamp) || timestamp < 0) return NOTHING;
  const date = new Date(timestamp);
  if (Number.isNaN(date.getTime())) return String(timestamp);
  const zone = -date.getTimezoneOffset();
  const shifted = new Date(timestamp + zone * MINUTE).toISOString().replace("T", " ").slice(0, -1);
  const sign = zone < 0 ? "-" : "+";
  const hours = String(Math.floor(Math.abs(zone) / 60)).padStart(2, "0");
  const minutes = String(Math.abs(zone) % 60).padStart(2, "0");
  return `${shifted} ${sign}${hours}:${minutes}`;
}

/** The time of day, to the millisecond. */
export function clock(timestamp) {
  const text = moment(timestamp);
  return text.length > 23 ? text.slice(11, 23) : text;
}

/** "1 topic", "2 topics". */
export function many(number, one, more = `${one}s`) {
  return `${exact(number)} ${number === 1 ? one : more}`;
}

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const HIDDEN_BUT_LINES = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Make invisible and bidirectional characters visible: a name could hide behind them. */
export function visible(text, { keepsLines = false } = {}) {
  return String(text).replace(keepsLines ? HIDDEN_BUT_LINES : HIDDEN, (found) => {
    const code = found.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    if (code === 0x7f) return "\u2421";
    return `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/** Truncate a text, but not in the middle of a character. */
export function short(text, length) {
  if (text.length <= length) return text;
  const cut = text.slice(0, length - 1);
  return `${/[\ud800-\udbff]$/.test(cut) ? cut.slice(0, -1) : cut}…`;
}
