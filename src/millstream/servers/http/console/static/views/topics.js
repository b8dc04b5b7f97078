// Topics with their sizes and rates.

import { action } from "../acting/access.js";
import { createTopic } from "../acting/topics.js";
import { Pages, repeat } from "../api.js";
import { fill, h } from "../dom.js";
import * as format from "../format.js";
import { failure, head, More, nothing, Stage } from "../parts.js";
import { topicRates } from "../rates.js";
import { link } from "../routes.js";
import { matches, searchField, Table } from "../tables.js";

const REFRESH_MS = 2_000;
const PAGE = 200;
const SEARCHED_MAX = 10_000;

/** Return rows for topics: their data and rates. */
export function withRates(topics, rates) {
  const now = performance.now();
  return topics.map((topic) => {
    const sizes = topic.sizes ?? {};
    return {
      id: topic.id,
      name: topic.name,
      partitions: topic.partition_count,
      durability: topic.durability,
      records: sizes.records ?? null,
      bytes: sizes.bytes ?? null,
      segments: sizes.segments ?? null,
      rate: rates.note(`${topic.id} records`, sizes.appended_records, now),
      byteRate: rates.note(`${topic.id} bytes`, sizes.appended_bytes, now),
    };
  });
}

/** Return the columns of a list of topics. */
export function topicColumns() {
  const figure = (id, label, write, hint) => ({
    id,
    label,
    hint,
    isNumber: true,
    value: (row) => row[id],
    show: (row) => write(row[id]),
    isFaint: (row) => !row[id],
    title: (row) => format.exact(row[id] === null ? null : Math.round(row[id])),
  });
  return [
    { id: "name", label: "Topic", class: "name", value: (row) => row.name, show: (row) => format.visible(row.name), title: (row) => row.name },
    figure("rate", "Records/s", format.perSecond, "Records per second, over the last five"),
    figure("byteRate", "Bytes/s", format.bytesPerSecond, "Bytes per second, over the last five"),
    figure("records", "Records", format.count),
    figure("bytes", "Size", format.bytes),
    figure("segments", "Segments", format.count),
    figure("partitions", "Partitions", format.count),
    { id: "durability", label: "Durability", value: (row) => row.durability, show: (row) => row.durability },
  ];
}

export function showTopics(place, { query, signal }) {
  const pages = new Pages("/v1/topics", "topics", { sizes: true }, PAGE);
  let search = query.get("q") ?? "";
  let rows = [];

  const table = new Table({
    label: "Topics",
    columns: topicColumns(),
    key: (row) => row.id,
    link: (row) => link(["topics", row.name]),
    sort: "name",
    empty: "No topic matches.",
  });
  const more = new More("topics", async () => {
    await pages.more(signal);
    update();
  });
  const total = h("span.count");
  const field = searchField("Search topics", (text) => {
    search = text;
    history.replaceState(null, "", link("topics", { q: text }));
    show();
    if (text) refresh();
  }, search);
  const stage = new Stage(h("div", null, table.element, more.element));
  fill(place, head("Topics", { badges: [total], tools: [field, action("New topic…", createTopic)] }), stage.element);

  function update() {
    rows = withRates(pages.items, topicRates);
    show();
  }

  function show() {
    const found = search ? rows.filter((row) => matches(row.name, search)) : rows;
    table.show(found);
    more.show(rows.length, pages.hasMore);
    const all = `${format.exact(rows.length)}${pages.hasMore ? "+" : ""}`;
    total.textContent = search ? `${format.exact(found.length)} of ${all}` : all;
  }

  const refresh = repeat(
    REFRESH_MS,
    signal,
    async () => {
      await pages.refresh(signal);
      // A search has to find topics on all pages.
      while (search && pages.hasMore && pages.items.length < SEARCHED_MAX) await pages.more(signal);
      if (!pages.items.length) {
        total.textContent = "";
        stage.showState(emptyState());
        return;
      }
      stage.showContent();
      update();
    },
    (error) => stage.showState(failure(error)),
  );
}

function emptyState() {
  const url = new URL("v1/topics/orders/records", document.baseURI);
  return nothing(
    "No topics yet",
    "A topic is created when its first record is appended. Kafka clients connect to the address in Health.",
    `curl -X POST ${url} \\\n  -d '{"records": [{"key": "k1", "value": {"n": 1}}]}'`,
  );
}
