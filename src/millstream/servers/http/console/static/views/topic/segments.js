// Segments of a topic: drawn to scale, one strip for each partition, and listed.

import { Pages, part, repeat } from "../../api.js";
import { fill, h } from "../../dom.js";
import * as format from "../../format.js";
import { badge, failure, More, Stage } from "../../parts.js";
import { Table } from "../../tables.js";

const REFRESH_MS = 3_000;
const PAGE = 200;

export function showSegments(inside, topic, query, signal) {
  const partition = query.get("partition");
  const pages = new Pages(`/v1/topics/${part(topic)}/segments`, "segments", { partition }, PAGE);
  const strips = h("div.strips");
  const readout = h("p.strip-readout", { role: "status" });
  const table = segmentTable();
  const more = new More("segments", async () => {
    await pages.more(signal);
    show();
  });
  const legend = h(
    "p.legend",
    null,
    h("span.chart-key.sealed"), "sealed", h("span.chart-key.active"), "active, grows",
    h("span.chart-key.amber"), "reclaimable",
  );
  const stage = new Stage(
    h("div", null, h("section.card", null, h("h2", null, "To scale"), legend, strips, readout), table.element, more.element),
  );
  inside.append(stage.element);

  function show() {
    drawStrips(strips, pages.items, readout, table);
    table.show(pages.items);
    more.show(pages.items.length, pages.hasMore);
  }

  repeat(
    REFRESH_MS,
    signal,
    async () => {
      await pages.refresh(signal);
      stage.showContent();
      show();
    },
    (error) => stage.showState(failure(error)),
  );
}

function words(one) {
  const parts = [
    `partition ${one.partition}`,
    `offsets ${format.exact(one.base_offset)} to ${format.exact(one.end_offset)}`,
    format.bytes(one.bytes),
    format.many(one.records, "record"),
    one.state,
  ];
  if (one.reclaimable_bytes) parts.push(`${format.bytes(one.reclaimable_bytes)} reclaimable`);
  return parts.join(" · ");
}

/** Draw a strip for each partition; the longest has the width of the page. */
function drawStrips(place, segments, readout, table) {
  const byPartition = Map.groupBy(segments, (one) => one.partition);
  const sums = new Map();
  for (const [partition, some] of byPartition)
    sums.set(partition, some.reduce((sum, one) => sum + one.bytes, 0));
  const most = Math.max(1, ...sums.values());
  const stamp = JSON.stringify(segments.map((one) => [one.partition, one.base_offset, one.bytes, one.reclaimable_bytes]));
  if (place.dataset.stamp === stamp) return;
  place.dataset.stamp = stamp;
  const rows = [...byPartition].map(([partition, some]) => {
    const blocks = some.map((one) => drawBlock(one, readout, table));
    const sum = sums.get(partition);
    const strip = h("div.strip", { role: "img", "aria-label": `Partition ${partition}: ${format.many(some.length, "segment")}, ${format.bytes(sum)}` }, blocks);
    strip.style.width = `${Math.max(2, (sum / most) * 100)}%`;
    return h(
      "div.strip-row",
      null,
      h("span.strip-name", null, String(partition)),
      h("div.strip-track", null, strip),
      h("span.strip-sum", { title: `${format.exact(sum)} bytes` }, format.bytes(sum)),
    );
  });
  fill(place, rows);
}

function drawBlock(one, readout, table) {
  const block = h(`span.segment.${one.state}`, { title: words(one) });
  block.style.flexGrow = Math.max(1, one.bytes);
  if (one.reclaimable_bytes) {
    const waste = h("span.waste");
    waste.style.width = `${Math.min(100, (one.reclaimable_bytes / Math.max(1, one.bytes)) * 100)}%`;
    block.append(waste);
  }
  block.addEventListener("pointerenter", () => (readout.textContent = words(one)));
  block.addEventListener("click", () => table.focusRow(keyOf(one)));
  return block;
}

function keyOf(one) {
  return `${one.partition}:${one.base_offset}`;
}

function segmentTable() {
  const figure = (id, label, write, hint) => ({
    id,
    label,
    hint,
    isNumber: true,
    value: (row) => row[id],
    show: (row) => write(row[id]),
    title: (row) => format.exact(row[id]),
  });
  const time = (id, label) => ({
    id,
    label,
    isNumber: true,
    value: (row) => row[id],
    show: (row) => format.ago(row[id]),
    title: (row) => format.moment(row[id]),
  });
  return new Table({
    label: "Segments",
    columns: [
      { ...figure("partition", "Partition", String), title: undefined },
      figure("base_offset", "From", format.exact, "The first offset of the segment"),
      figure("end_offset", "To", format.exact, "The base offset of the next segment"),
      figure("bytes", "Size", format.bytes),
      figure("records", "Records", format.count, "In the file, including those deleted by key"),
      { id: "state", label: "State", value: (row) => row.state, stamp: (row) => row.state, show: (row) => badge(row.state) },
      time("first_timestamp", "Oldest"),
      time("last_timestamp", "Newest"),
      figure("deleted", "Deleted", format.count),
      figure("reclaimable_bytes", "Reclaimable", format.bytes),
    ],
    key: keyOf,
  });
}
