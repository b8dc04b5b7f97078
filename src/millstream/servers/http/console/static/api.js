// Requests to the node, and whether it is reachable.

import { headersOf, session } from "./session.js";

const TIMEOUT_MS = 10_000;
const CHANGE_TIMEOUT_MS = 60_000;
const RETRY_MS = 1_000;

const BASE = new URL(".", document.baseURI);

/** An error response of the node. */
export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The node did not respond. */
export class Unreachable extends Error {}

/** Emits `change` when the node becomes unreachable, and when it is reachable again. */
export const node = new (class extends EventTarget {
  isReached = true;

  note(isReached) {
    if (isReached === this.isReached) return;
    this.isReached = isReached;
    this.dispatchEvent(new Event("change"));
  }
})();

/** Return the URL of an operation, without empty parameters. */
export function address(path, query = {}) {
  const url = new URL(path.replace(/^\//, ""), BASE);
  for (const [name, value] of Object.entries(query))
    for (const one of [value].flat())
      if (one !== null && one !== undefined && one !== "") url.searchParams.append(name, one);
  return url;
}

/** Escape a name for a path. */
export function part(name) {
  return encodeURIComponent(name);
}

/** Request something and return the JSON of the response. */
export function get(path, query, signal, parse = JSON.parse) {
  return request(address(path, query), {}, TIMEOUT_MS, signal, parse);
}

/** Change something and return the JSON of the response; `body` is a value, or JSON as text. */
export function send(method, path, body) {
  const text = typeof body === "string" || body === undefined ? body : JSON.stringify(body);
  const options = { method, body: text, headers: { "Millstream-Console": "1" } };
  return request(address(path), options, CHANGE_TIMEOUT_MS);
}

/** Return what the node says about the owner of a token; throws `Refused` if it is not valid. */
export function askWho(token = session.token) {
  return request(address("/v1/access/whoami"), {}, TIMEOUT_MS, undefined, JSON.parse, token);
}

async function request(url, options, milliseconds, signal, parse = JSON.parse, token = session.token) {
  const timeout = AbortSignal.timeout(milliseconds);
  let answer;
  let text;
  try {
    answer = await fetch(url, {
      ...options,
      headers: { ...options.headers, ...headersOf(token) },
      signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
      cache: "no-store",
    });
    text = await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    node.note(false);
    throw new Unreachable(String(error));
  }
  node.note(true);
  const found = answer.status === 204 ? null : parsed(text, parse);
  if (answer.ok && found !== undefined) return found;
  throw refusal(answer, found, token);
}

/** Return the error of a response that is not read yet. */
export async function refusalOf(answer, token) {
  return refusal(answer, parsed(await answer.text().catch(() => ""), JSON.parse), token);
}

function refusal(answer, found, token) {
  const told = found?.error;
  const message = told?.message ?? `the node responded with ${answer.status} ${answer.statusText}`;
  if (answer.status === 401) session.refused(token, message);
  return new Refused(answer.status, told?.code ?? "", message);
}

function parsed(text, parse) {
  try {
    return parse(text);
  } catch {
    return undefined;
  }
}

/** Call a function repeatedly until `signal`, but not while the page is hidden.
 *
 * Errors go to `fail`, except that the node is unreachable (the banner says so) or that the signal
 * came. Returns a function that calls it at once.
 */
export function repeat(milliseconds, signal, work, fail) {
  let timer = 0;
  let isUnderWay = false;
  let isWanted = false;

  async function run() {
    clearTimeout(timer);
    if (signal.aborted) return;
    if (isUnderWay) {
      isWanted = true;
      return;
    }
    isUnderWay = true;
    isWanted = false;
    let wait = milliseconds;
    try {
      await work();
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Unreachable) wait = Math.min(wait, RETRY_MS);
      else fail(error);
    } finally {
      isUnderWay = false;
    }
    if (signal.aborted) return;
    if (isWanted) run();
    else if (!document.hidden) timer = setTimeout(run, wait);
  }

  document.addEventListener("visibilitychange", () => document.hidden || run(), { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  run();
  return run;
}

/** A paged list: the loaded items, and whether there are more. */
export class Pages {
  /** `name` is the field of the response with the items. */
  constructor(path, name, query, limit, parse = JSON.parse) {
    this.path = path;
    this.name = name;
    this.query = query;
    this.limit = limit;
    this.parse = parse;
    this.items = [];
    this.next = null;
    this.pageCount = 1;
    this.isLoaded = false;
  }

  get hasMore() {
    return this.next !== null && this.next !== undefined;
  }

  /** Reload all pages that were loaded. */
  async refresh(signal) {
    const items = [];
    let after = null;
    for (let page = 0; page < this.pageCount; page += 1) {
      const query = { ...this.query, after, limit: this.limit };
      const found = await get(this.path, query, signal, this.parse);
      items.push(...found[this.name]);
      after = found.next ?? null;
      if (after === null) break;
    }
    this.items = items;
    this.next = after;
    this.isLoaded = true;
    return this;
  }

  /** Load the next page. */
  async more(signal) {
    if (!this.hasMore) return this;
    const query = { ...this.query, after: this.next, limit: this.limit };
    const found = await get(this.path, query, signal, this.parse);
    this.items = [...this.items, ...found[this.name]];
    this.next = found.next ?? null;
    this.pageCount += 1;
    return this;
  }
}
