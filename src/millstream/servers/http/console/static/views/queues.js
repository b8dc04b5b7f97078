// Queues with their number of jobs by state.

import { get, repeat } from "../api.js";
import { fill, h } from "../dom.js";
import * as format from "../format.js";
import { failure, head, nothing, Stage } from "../parts.js";
import { link } from "../routes.js";
import { matches, searchField, Table } from "../tables.js";

const REFRESH_MS = 2_000;

export function showQueues(place, { query, signal }) {
  let search = query.get("q") ?? "";
  let queues = [];
  const figure = (id, label, hint) => ({
    id,
    label,
    hint,
    isNumber: true,
    value: (row) => row[id],
    show: (row) => format.count(row[id]),
    title: (row) => format.exact(row[id]),
  });
  const table = new Table({
    label: "Queues",
    columns: [
      { id: "name", label: "Queue", class: "name", value: (row) => row.name, show: (row) => format.visible(row.name), title: (row) => row.name },
      figure("ready", "Ready", "Jobs that can be claimed"),
      figure("leased", "Leased", "Jobs that a worker has claimed"),
      figure("delayed", "Delayed", "Jobs that a worker returned with a delay"),
      figure("dead", "Dead", "Jobs moved to the dead-letter topic"),
      figure("acked", "Done", "Jobs that are done"),
      figure("enqueued", "Enqueued", "Jobs added since the queue was created"),
      figure("delivered", "Delivered", "Deliveries of all jobs together"),
    ],
    key: (row) => row.name,
    link: (row) => link(["queues", row.name]),
    sort: "name",
    empty: "No queue matches.",
  });
  const total = h("span.count");
  const field = searchField("Search queues", (text) => {
    search = text;
    history.replaceState(null, "", link("queues", { q: text }));
    show();
  }, search);
  const stage = new Stage(table.element);
  fill(place, head("Queues", { badges: [total], tools: [field] }), stage.element);

  function show() {
    const found = search ? queues.filter((row) => matches(row.name, search)) : queues;
    table.show(found);
    const all = format.exact(queues.length);
    total.textContent = search ? `${format.exact(found.length)} of ${all}` : all;
  }

  repeat(
    REFRESH_MS,
    signal,
    async () => {
      ({ queues } = await get("/v1/queues", {}, signal));
      if (!queues.length) {
        total.textContent = "";
        stage.showState(emptyState());
        return;
      }
      stage.showContent();
      show();
    },
    (error) => stage.showState(failure(error)),
  );
}

function emptyState() {
  const url = new URL("v1/queues/mail", document.baseURI);
  const records = new URL("v1/topics/mail/records", document.baseURI);
  return nothing(
    "No queues yet",
    "A queue delivers each record of the topic of the same name to one worker.",
    `curl -X PUT ${url}\ncurl -X POST ${records} -d '{"records": [{"value": {"to": "a"}}]}'`,
  );
}
