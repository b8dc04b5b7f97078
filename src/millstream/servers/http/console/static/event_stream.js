// Server-sent events by `fetch`. A browser's EventSource cannot send a token in a header.

import { session } from "./session.js";

const RETRY_MS = 1_000;

/** A stream of events that connects again where it broke off.
 *
 * Calls `on.open`, `on.event(kind, data, id)`, `on.lost` when the connection is lost and tried again,
 * and `on.refused(response)` when the node answers with an error: then the stream has ended.
 */
export class EventStream {
  #controller = new AbortController();
  #timer = 0;
  #lastId = "";

  constructor(url, on) {
    this.url = url;
    this.on = on;
    this.#run();
  }

  close() {
    clearTimeout(this.#timer);
    this.#controller.abort();
  }

  async #run() {
    const { signal } = this.#controller;
    const token = session.token;
    const resume = this.#lastId ? { "Last-Event-ID": this.#lastId } : {};
    try {
      const response = await fetch(this.url, {
        signal,
        cache: "no-store",
        headers: { ...session.headers, ...resume, Accept: "text/event-stream" },
      });
      if (!response.ok && response.status < 500) {
        this.on.refused(response, token);
        return;
      }
      if (response.ok) {
        this.on.open();
        await this.#read(response.body.pipeThrough(new TextDecoderStream()));
      } else await response.body?.cancel();
    } catch {
      // The connection was lost, or the stream was closed.
    }
    if (signal.aborted) return;
    this.on.lost();
    this.#timer = setTimeout(() => this.#run(), RETRY_MS);
  }

  async #read(text) {
    const lines = new Lines();
    let event = newEvent();
    for await (const piece of text) {
      for (const line of lines.add(piece)) {
        if (this.#controller.signal.aborted) return;
        if (line !== "") addField(event, line);
        else {
          if (event.id !== null) this.#lastId = event.id;
          if (event.data.length) this.on.event(event.kind, event.data.join("\n"), this.#lastId);
          event = newEvent();
        }
      }
    }
  }
}

function newEvent() {
  return { kind: "message", data: [], id: null };
}

function addField(event, line) {
  const at = line.indexOf(":");
  if (at === 0) return; // A comment.
  const name = at < 0 ? line : line.slice(0, at);
  const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
  if (name === "event") event.kind = value;
  else if (name === "data") event.data.push(value);
  else if (name === "id" && !value.includes("\0")) event.id = value;
}

/** Splits pieces of text into lines, which end with LF, CR or both. */
export class Lines {
  #pieces = [];
  #endedWithCr = false;

  /** Add a piece and return the lines that are complete. */
  add(piece) {
    let text = piece;
    if (this.#endedWithCr && text.startsWith("\n")) text = text.slice(1);
    if (text === "") return [];
    this.#endedWithCr = text.endsWith("\r");
    const lines = text.split(/\r\n|\r|\n/);
    if (lines.length > 1) {
      lines[0] = this.#pieces.join("") + lines[0];
      this.#pieces = [];
    }
    this.#pieces.push(lines.pop());
    return lines;
  }
}
