// One topic: partitions, segments, live tail, search, readers and configs.

import { action } from "../acting/access.js";
import { addPartitions, deleteTopic, produce } from "../acting/topics.js";
import { get, part, repeat } from "../api.js";
import { fill, h } from "../dom.js";
import * as format from "../format.js";
import { badge, failure, Figures, head, Stage, tabs } from "../parts.js";
import { topicRates } from "../rates.js";
import { link } from "../routes.js";
import { Table } from "../tables.js";
import { Tail } from "../tail.js";
import { fromTools, readFrom } from "./tail.js";
import { showConfigs } from "./topic/configs.js";
import { showReaders } from "./topic/readers.js";
import { showSearch } from "./topic/search.js";
import { showSegments } from "./topic/segments.js";

const REFRESH_MS = 2_000;

const TABS = [
  ["partitions", "Partitions"],
  ["segments", "Segments"],
  ["tail", "Live tail"],
  ["search", "Search"],
  ["readers", "Readers"],
  ["configs", "Configs"],
];

export function showTopic(place, { names: [name, wanted], query, signal }) {
  const tab = TABS.some(([one]) => one === wanted) ? wanted : "partitions";
  const durability = h("span");
  const figures = new Figures([
    ["rate", "Records/s"],
    ["byteRate", "Bytes/s"],
    ["records", "Records"],
    ["bytes", "Size"],
    ["partitions", "Partitions"],
    ["segments", "Segments"],
    ["reclaimable", "Reclaimable"],
  ]);
  const entries = TABS.map(([one, text]) => [
    one,
    text,
    link(one === "partitions" ? ["topics", name] : ["topics", name, one]),
  ]);
  const inside = h("div");
  const stage = new Stage(h("div", null, figures.element, tabs("Parts of the topic", entries, tab), inside));
  let now = null;
  const tools = [
    action("Produce…", () => produce(name, now)),
    action("Add partitions…", () => addPartitions(name, now, refresh)),
    action("Delete…", () => deleteTopic(name), { isDanger: true }),
  ];
  fill(place, head(name, { path: [["Topics", link("topics")]], badges: [durability], tools }), stage.element);

  const show = tab === "partitions" ? partitions(inside) : () => {};
  if (tab === "segments") showSegments(inside, name, query, signal);
  if (tab === "search") showSearch(inside, name, query, signal);
  if (tab === "readers") showReaders(inside, name, signal);
  if (tab === "configs") showConfigs(inside, name, signal);
  if (tab === "tail") {
    const beginning = readFrom(query);
    const tail = new Tail({ topics: [name], ...beginning, signal });
    const go = (changes) => void (location.hash = link(["topics", name, "tail"], changes));
    tail.element.querySelector(".tools").prepend(fromTools(beginning, go));
    inside.append(tail.element);
  }

  const refresh = repeat(
    REFRESH_MS,
    signal,
    async () => {
      const topic = await get(`/v1/topics/${part(name)}`, {}, signal);
      now = topic;
      stage.showContent();
      fill(durability, badge(topic.durability, "plain"));
      showFigures(figures, topic);
      show(topic);
    },
    (error) => stage.showState(failure(error, "topics")),
  );
}

function showFigures(figures, topic) {
  const heads = topic.partitions.reduce((sum, one) => sum + one.head, 0);
  // Bytes shrink when records are deleted; heads only grow.
  const rate = topicRates.note(`${topic.id} heads`, heads);
  const bytes = topicRates.note(`${topic.id} size`, topic.bytes);
  figures.set("rate", format.perSecond(rate), "Over the last five seconds");
  figures.set("byteRate", format.bytesPerSecond(bytes), "Over the last five seconds");
  figures.set("records", format.count(topic.count), format.exact(topic.count));
  figures.set("bytes", format.bytes(topic.bytes), `${format.exact(topic.bytes)} bytes`);
  figures.set("partitions", format.count(topic.partition_count), format.exact(topic.partition_count));
  const segments = topic.partitions.reduce((sum, one) => sum + one.segments, 0);
  figures.set("segments", format.count(segments), format.exact(segments));
  const waits = `${format.exact(topic.reclaimable_bytes)} bytes of ${format.many(topic.deleted, "deleted record")}`;
  figures.set("reclaimable", format.bytes(topic.reclaimable_bytes), waits);
}

function partitions(inside) {
  const figure = (id, label, write = format.exact, hint = "") => ({
    id,
    label,
    hint,
    isNumber: true,
    value: (row) => row[id],
    show: (row) => write(row[id]),
    title: (row) => format.exact(row[id]),
  });
  const table = new Table({
    label: "Partitions",
    columns: [
      { ...figure("partition", "Partition", String), title: undefined },
      figure("first_live_offset", "First", format.exact, "The first offset that can be read"),
      figure("head", "End", format.exact, "The offset after the last record"),
      figure("count", "Records", format.count),
      figure("bytes", "Size", format.bytes),
      figure("segments", "Segments"),
      figure("eviction_floor", "Floor", format.exact, "Retention has deleted everything before it"),
      figure("deleted", "Deleted", format.count, "Deleted by key, still in a file"),
      figure("epoch", "Epoch", String),
    ],
    key: (row) => row.partition,
  });
  inside.append(table.element);
  return (topic) => table.show(topic.partitions);
}
