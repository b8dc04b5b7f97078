// What this page may do: the node decides, and refuses everything else.

import { Refused, send } from "../api.js";
import { h } from "../dom.js";
import { visible } from "../format.js";

const SHOWN_MS = 8_000;

/** Note what the node lets the console do. Without the right to write, no action is shown. */
export function noteAccess(access) {
  document.body.classList.toggle("can-write", access === "write");
}

/** A button of an action, which is shown if the page may write. */
export function action(text, open, { isDanger = false } = {}) {
  return h(isDanger ? "button.writes.danger" : "button.writes", { type: "button", onclick: open }, text);
}

/** Show a message for some seconds. */
export function notice(text, tone = "good") {
  const close = h("button", { type: "button", "aria-label": "Close", onclick: () => entry.remove() }, "×");
  const entry = h(`p.notice.${tone}`, null, h("span", null, visible(text)), close);
  document.getElementById("notices").append(entry);
  setTimeout(() => entry.remove(), SHOWN_MS);
}

/** Send a change to the node; errors become messages that people can read. */
export async function change(method, path, body) {
  try {
    return await send(method, path, body);
  } catch (error) {
    if (error instanceof Refused) throw error;
    throw new Error("The node did not respond, so it is not known whether it did this. Look before you try again.");
  }
}
