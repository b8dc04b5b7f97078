// The dead letters of a queue, with what can be done about them.

import { action } from "../acting/access.js";
import { purge, redrive } from "../acting/queues.js";
import { Pages, part, repeat } from "../api.js";
import { h } from "../dom.js";
import { exact } from "../format.js";
import { parseExactly } from "../json.js";
import { More } from "../parts.js";
import { RecordTable } from "../record_table.js";
import { ShownRecord } from "../records.js";
import { link } from "../routes.js";

const REFRESH_MS = 2_000;
const PAGE = 50;

export function showDeadLetters(inside, name, decoder, signal) {
  const pages = new Pages(`/v1/queues/${part(name)}/dead_letters`, "letters", {}, PAGE, parseExactly);
  const table = new RecordTable({ label: "Dead letters", empty: "There are no dead letters.", extra: origin });
  const more = new More("dead letters", async () => {
    await pages.more(signal);
    show();
  });
  const topic = h("a");
  const tools = h(
    "div.tools",
    null,
    h("span.hint", null, "Jobs that were delivered too often, in the topic ", topic, "."),
    action("Redrive…", () => redrive(name, () => refresh())),
    action("Purge…", () => purge(name, () => refresh()), { isDanger: true }),
  );
  inside.append(tools, table.element, more.element);
  let shown = "";

  function show() {
    if (!topic.textContent) return; // The queue tells its name.
    const stamp = JSON.stringify(pages.items.map((one) => [one.partition, one.offset]));
    if (stamp !== shown) {
      shown = stamp;
      table.clear();
      table.add(pages.items.map((one) => new ShownRecord(topic.textContent, one.partition, one, decoder)));
    }
    more.show(pages.items.length, pages.hasMore);
  }

  const refresh = repeat(
    REFRESH_MS,
    signal,
    async () => {
      await pages.refresh(signal);
      show();
    },
    () => {}, // The view around it shows what is wrong.
  );
  return (queue) => {
    topic.textContent = queue.dead_letter;
    topic.href = link(["topics", queue.dead_letter]);
    show();
  };
}

/** Where the letter came from, and why. */
function origin(record) {
  const headers = new Map(record.headers);
  const facts = [
    ["Reason", headers.get("millstream-reason")],
    ["Deliveries", headers.get("millstream-deliveries")],
    ["Job", headers.has("millstream-offset") && `partition ${headers.get("millstream-partition")}, offset ${exact(Number(headers.get("millstream-offset")))}`],
  ];
  return facts.filter(([, text]) => text);
}
