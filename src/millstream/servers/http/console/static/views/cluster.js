// Cluster: nodes, and partitions with their leaders, replicas in sync, lag and copies.

import { get, repeat } from "../api.js";
import { fill, h } from "../dom.js";
import * as format from "../format.js";
import { badge, failure, Figures, head, Stage } from "../parts.js";
import { link } from "../routes.js";
import { Table } from "../tables.js";

const REFRESH_MS = 2_000;
const PARTITIONS_MAX = 1_000;
const DRIFT_GOOD_MS = 100;
const DRIFT_ALARM_MS = 1_000;

export function showCluster(place, { signal }) {
  const figures = new Figures([
    ["nodes", "Nodes"],
    ["controller", "Controller"],
    ["partitions", "Partitions"],
    ["offline", "No leader"],
    ["small", "Small ISR"],
    ["behind", "Behind"],
    ["moving", "Moving"],
    ["left", "Left to copy"],
  ]);
  const status = h("span");
  const notes = h("ul.problems", { hidden: true });
  const nodes = nodeTable();
  const partitions = partitionTable();
  const more = h("p.more", { hidden: true }, `The first ${format.exact(PARTITIONS_MAX)} partitions are shown.`);
  const content = h(
    "div",
    null,
    figures.element,
    notes,
    h("h2", null, "Nodes"),
    nodes.element,
    h("h2", null, "Partitions"),
    partitions.element,
    more,
  );
  const stage = new Stage(content);
  fill(place, head("Cluster", { badges: [status] }), stage.element);
  repeat(
    REFRESH_MS,
    signal,
    async () => {
      const [cluster, page] = await Promise.all([
        get("/v1/cluster", {}, signal),
        get("/v1/cluster/partitions", { limit: PARTITIONS_MAX }, signal),
      ]);
      stage.showContent();
      const left = page.partitions.flatMap((one) => one.followers).reduce((sum, one) => sum + (one.resync_bytes_left ?? 0), 0);
      const alive = cluster.nodes.filter((one) => one.is_alive).length;
      figures.set("nodes", format.exact(alive), `${format.many(cluster.nodes.length, "node")} known, ${format.exact(alive)} alive`);
      figures.set("controller", cluster.controller === null ? format.NOTHING : String(cluster.controller), "The node that elects leaders");
      figures.set("partitions", format.count(cluster.partitions), format.exact(cluster.partitions));
      figures.set("offline", format.count(cluster.offline), "Partitions without a leader: nothing can be read or written");
      figures.set("small", format.count(cluster.under_min_insync), "Partitions that refuse writes with acks=all");
      figures.set("behind", format.count(cluster.under_replicated), "Partitions with a replica that is not in sync");
      figures.set("moving", format.count(cluster.reassigning), "Partitions whose replicas are being moved");
      figures.set("left", format.bytes(left), "Whole segments that replicas have still to copy");
      const isWell = !cluster.offline && !cluster.under_min_insync && !cluster.under_replicated;
      const word = isWell ? "well" : cluster.offline || cluster.under_min_insync ? "not writable" : "replicas behind";
      const lines = [...cluster.problems, ...cluster.warnings];
      showOnce(status, word, () => badge(word, isWell ? "good" : word === "replicas behind" ? "warn" : "bad"));
      showOnce(notes, JSON.stringify(lines), () => lines.map((one) => h("li", null, format.visible(one))));
      notes.hidden = !lines.length;
      nodes.show(cluster.nodes);
      partitions.show(page.partitions);
      more.hidden = page.next === null;
    },
    (error) => stage.showState(failure(error)),
  );
}

/** Replace the content of an element only if it has changed. */
function showOnce(element, stamp, make) {
  if (element.dataset.stamp === stamp) return;
  element.dataset.stamp = stamp;
  fill(element, make());
}

function stateOf(node) {
  if (!node.is_alive) return ["gone", "bad"];
  if (node.is_stopping) return ["stopping", "warn"];
  if (node.is_removed) return ["being removed", "warn"];
  if (node.breaker !== null && node.breaker !== "closed") return [`breaker ${node.breaker.replace("_", " ")}`, "bad"];
  return ["alive", "good"];
}

function driftTone(ms) {
  if (ms === null || Math.abs(ms) < DRIFT_GOOD_MS) return "plain";
  return Math.abs(ms) < DRIFT_ALARM_MS ? "warn" : "bad";
}

function nodeTable() {
  const number = (id, label, hint) => ({ id, label, hint, isNumber: true, value: (row) => row[id], show: (row) => format.count(row[id]), title: (row) => format.exact(row[id]) });
  const text = (id, label) => ({ id, label, value: (row) => row[id] ?? "", show: (row) => format.visible(row[id] ?? format.NOTHING) });
  return new Table({
    label: "Nodes",
    sort: "node_id",
    columns: [
      { id: "node_id", label: "Node", isNumber: true, value: (row) => row.node_id, show: (row) => String(row.node_id) },
      { id: "state", label: "State", value: (row) => stateOf(row)[0], stamp: (row) => `${stateOf(row)} ${row.is_controller}`, show: (row) => [badge(...stateOf(row)), row.is_controller ? [" ", badge("controller", "plain")] : null].flat().filter(Boolean) },
      number("leaders", "Leads", "Partitions that it leads"),
      number("replicas", "Replicas"),
      { id: "drift_ms", label: "Drift", isNumber: true, hint: "How far its clock is ahead of that of the node that answers", value: (row) => row.drift_ms, stamp: (row) => `${row.drift_ms}`, show: (row) => (row.drift_ms === null ? format.NOTHING : badge(`${row.drift_ms} ms`, driftTone(row.drift_ms))) },
      text("rack", "Rack"),
      text("kafka", "Kafka"),
      text("http", "HTTP"),
      text("peer", "Peers"),
      text("release", "Release"),
      { id: "started_at", label: "Started", value: (row) => row.started_at, show: (row) => format.ago(row.started_at), title: (row) => format.moment(row.started_at) },
    ],
    key: (row) => String(row.node_id),
    empty: "No nodes.",
  });
}

/** The greatest lag of the replicas of a partition, in records; null if that of one is not known. */
function lagOf(partition) {
  const lags = partition.followers.map((one) => one.lag_records);
  return lags.length && !lags.includes(null) ? Math.max(...lags) : null;
}

function copying(partition) {
  return partition.followers.reduce((sum, one) => sum + (one.resync_bytes_left ?? 0), 0);
}

function partitionState(partition) {
  if (partition.leader === null) return ["no leader", "bad"];
  if (partition.isr.length < partition.min_insync) return ["too few in sync", "bad"];
  if (partition.adding.length || partition.removing.length) return ["moving", "warn"];
  if (copying(partition)) return ["copying", "warn"];
  return partition.followers.some((one) => !one.is_in_sync) ? ["behind", "warn"] : ["well", "good"];
}

const ORDER = ["no leader", "too few in sync", "behind", "copying", "moving", "well"];

function partitionTable() {
  const list = (id, label, hint) => ({ id, label, hint, value: (row) => row[id].length, show: (row) => row[id].join(", ") || format.NOTHING });
  return new Table({
    label: "Partitions",
    sort: "state",
    columns: [
      { id: "topic", label: "Topic", class: "name", value: (row) => row.topic, stamp: (row) => row.topic, show: (row) => h("a", { href: link(["topics", row.topic]) }, format.visible(row.topic)) },
      { id: "partition", label: "Partition", isNumber: true, value: (row) => row.partition, show: (row) => String(row.partition) },
      { id: "state", label: "State", value: (row) => ORDER.indexOf(partitionState(row)[0]), stamp: (row) => `${partitionState(row)} ${row.problems}`, show: (row) => badge(...partitionState(row)), title: (row) => format.visible(row.problems.join("\n"), { keepsLines: true }) },
      { id: "leader", label: "Leader", isNumber: true, value: (row) => row.leader, show: (row) => (row.leader === null ? format.NOTHING : String(row.leader)), title: (row) => `leader epoch ${row.leader_epoch}` },
      list("isr", "In sync", "Nodes that have every committed record"),
      list("replicas", "Replicas", "All replicas; the first should lead"),
      { id: "lag", label: "Lag", isNumber: true, hint: "Records that the slowest replica lacks", value: lagOf, show: (row) => format.count(lagOf(row)), title: (row) => format.exact(lagOf(row)) },
      { id: "left", label: "Left to copy", isNumber: true, value: copying, show: (row) => (copying(row) ? format.bytes(copying(row)) : format.NOTHING), title: (row) => format.exact(copying(row)) },
      { id: "committed", label: "Committed", isNumber: true, hint: "The offset up to which readers see records", value: (row) => row.high_watermark, show: (row) => format.count(row.high_watermark), title: (row) => format.exact(row.high_watermark) },
    ],
    key: (row) => `${row.topic}/${row.partition}`,
    empty: "No partitions yet.",
  });
}
