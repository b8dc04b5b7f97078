// Overview: current activity of the node, and its last minutes.

import { get, repeat } from "../api.js";
import { BINARY, Chart, ChartGroup } from "../charts.js";
import { h, fill } from "../dom.js";
import * as format from "../format.js";
import { card, failure, Figures, head, Stage } from "../parts.js";
import { topicRates } from "../rates.js";
import { link } from "../routes.js";
import { Table } from "../tables.js";
import { topicColumns, withRates } from "./topics.js";

const HISTORY_MS = 1_000;
const LISTS_MS = 2_000;
const TOPICS_MAX = 1_000;
const BUSIEST = 6;
const SAMPLES = 300;

const CHARTS = [
  ["Appended records", [["appended_records", "records", "blue"]], format.rate, { isFilled: true, topMin: 10 }],
  [
    "Throughput",
    [
      ["appended_bytes", "in", "blue"],
      ["read_bytes", "out", "amber"],
    ],
    format.byteRate,
    { steps: BINARY, topMin: 1024 },
  ],
  [
    "Requests",
    [
      ["kafka_requests", "Kafka", "blue"],
      ["http_requests", "HTTP", "amber"],
    ],
    format.rate,
    { topMin: 10 },
  ],
  [
    "Commit latency",
    [
      ["commit_p50_ms", "p50", "blue"],
      ["commit_p99_ms", "p99", "amber"],
    ],
    format.latency,
    {},
  ],
  [
    "Request latency, p99",
    [
      ["kafka_p99_ms", "Kafka", "blue"],
      ["http_p99_ms", "HTTP", "amber"],
    ],
    format.latency,
    {},
  ],
  ["Connections", [["connections", "connections", "blue"]], format.count, { isFilled: true, topMin: 4 }],
  ["CPU", [["cpu_percent", "CPU", "blue"]], format.percent, { isFilled: true, topMin: 100 }],
  ["Memory", [["memory_bytes", "memory", "blue"]], format.bytes, { steps: BINARY, isFilled: true, topMin: 1024 * 1024 }],
];

export function showOverview(place, { signal }) {
  const figures = new Figures([
    ["topics", "Topics", link("topics")],
    ["partitions", "Partitions", link("topics")],
    ["groups", "Groups", link("groups")],
    ["queues", "Queues", link("queues")],
    ["connections", "Connections"],
    ["watchers", "Watchers"],
    ["uptime", "Uptime", link("health")],
  ]);
  const group = new ChartGroup();
  const charts = CHARTS.map(([title, lines, write, options]) => ({
    names: lines.map(([name]) => name),
    chart: new Chart({
      title,
      lines: lines.map(([name, label, color]) => ({ name, label, color })),
      format: write,
      group,
      ...options,
    }),
  }));
  const problems = h("ul.problems", { hidden: true });
  const topics = busiestTopics();
  const groups = laggingGroups();
  const content = h(
    "div",
    null,
    problems,
    figures.element,
    h("div.charts", null, charts.map(({ chart }) => chart.element)),
    h(
      "div.columns",
      null,
      card(h("a", { href: link("topics") }, "Busiest topics"), topics.element),
      card(h("a", { href: link("groups") }, "Groups by lag"), groups.element),
    ),
  );
  const stage = new Stage(content);
  fill(place, head("Overview"), stage.element);

  repeat(
    HISTORY_MS,
    signal,
    async () => {
      const [node, history] = await Promise.all([
        get("/v1/node", {}, signal),
        get("/v1/node/history", {}, signal),
      ]);
      stage.showContent();
      showFigures(figures, node);
      fill(problems, node.problems.map((one) => h("li", null, format.visible(one))));
      problems.hidden = !node.problems.length;
      for (const { names, chart } of charts)
        chart.show(names.map((name) => padded(history.series[name])), history.until, history.interval_ms);
    },
    (error) => stage.showState(failure(error)),
  );
  repeat(
    LISTS_MS,
    signal,
    async () => {
      const query = { sizes: true, limit: TOPICS_MAX };
      const found = await get("/v1/topics", query, signal);
      const rows = withRates(found.topics, topicRates);
      rows.sort((a, b) => (b.byteRate ?? 0) - (a.byteRate ?? 0) || (b.bytes ?? 0) - (a.bytes ?? 0));
      topics.show(rows.slice(0, BUSIEST));
      const some = await get("/v1/groups", { limit: TOPICS_MAX }, signal);
      some.groups.sort((a, b) => b.lag - a.lag);
      groups.show(some.groups.slice(0, BUSIEST));
    },
    () => {},
  );
}

/** Pad the history of a new node, so that time runs from right to left at once. */
function padded(values = []) {
  return [...Array(Math.max(0, SAMPLES - values.length)).fill(null), ...values];
}

function showFigures(figures, node) {
  for (const name of ["topics", "partitions", "groups", "queues", "watchers"])
    figures.set(name, format.count(node[name]), format.exact(node[name]));
  const { kafka_connections: kafka, http_connections: http } = node;
  figures.set("connections", format.count(kafka + http), `${kafka} Kafka, ${http} HTTP`);
  figures.set("uptime", format.duration(node.uptime_ms), `since ${format.moment(node.started_at)}`);
}

function busiestTopics() {
  const wanted = ["name", "rate", "byteRate", "bytes"];
  const columns = topicColumns().filter((column) => wanted.includes(column.id));
  return new Table({
    label: "Busiest topics",
    columns: columns.map((column) => ({ ...column, value: undefined })),
    key: (row) => row.id,
    link: (row) => link(["topics", row.name]),
    empty: "No topics yet.",
  });
}

function laggingGroups() {
  return new Table({
    label: "Groups by lag",
    columns: [
      { id: "group", label: "Group", class: "name", show: (row) => format.visible(row.group) },
      { id: "state", label: "State", show: (row) => row.state },
      {
        id: "lag",
        label: "Lag",
        isNumber: true,
        show: (row) => format.count(row.lag),
        title: (row) => format.exact(row.lag),
      },
    ],
    key: (row) => row.group,
    link: (row) => link(["groups", row.group]),
    empty: "No consumer groups yet.",
  });
}
