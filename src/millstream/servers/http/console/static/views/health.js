// Health: readiness, problems, and the machine of the node.

import { address, get, repeat } from "../api.js";
import { fill, h } from "../dom.js";
import * as format from "../format.js";
import { badge, card, facts, failure, head, Stage } from "../parts.js";

const REFRESH_MS = 2_000;

export function showHealth(place, { signal }) {
  const status = h("span");
  const content = h("div.cards");
  const stage = new Stage(content);
  fill(place, head("Health", { badges: [status] }), stage.element);
  repeat(
    REFRESH_MS,
    signal,
    async () => {
      const node = await get("/v1/node", {}, signal);
      stage.showContent();
      const isGood = node.status === "ready" && !node.problems.length;
      fill(status, badge(node.status, node.status === "ready" ? (isGood ? "good" : "warn") : "bad"));
      // Only changed problems are replaced, so that a link keeps its focus.
      for (const [at, card] of makeCards(node).entries()) {
        const shown = content.children[at];
        if (!shown) content.append(card);
        else if (shown.textContent !== card.textContent) shown.replaceWith(card);
      }
    },
    (error) => stage.showState(failure(error)),
  );
}

function wide(card) {
  card.classList.add("is-wide");
  return card;
}

function makeCards(node) {
  const { machine, opened } = node;
  const code = (text) => h("code", null, format.visible(text));
  const quota = machine.cpu_quota === null ? "" : `, limited to ${machine.cpu_quota}`;
  const problems = node.problems.length
    ? h("ul.problems", null, node.problems.map((one) => h("li", null, format.visible(one))))
    : h("p.good-news", null, "No problems.");
  return [
    wide(card("Problems", problems)),
    card(
      "Node",
      facts([
        ["Version", node.version],
        ["Node id", String(node.node_id)],
        ["Uptime", h("span", { title: `since ${format.moment(node.started_at)}` }, format.duration(node.uptime_ms))],
        ["Started", format.moment(node.started_at)],
        ["Data", code(node.data)],
        ["Commits by", node.commits],
        ["Default durability", node.durability],
        ["Event loop", node.event_loop],
      ]),
    ),
    card(
      "Servers",
      facts([
        ["Kafka", code(node.kafka)],
        ["Advertised address", code(node.advertised)],
        ["Kafka connections", format.exact(node.kafka_connections)],
        ["HTTP", code(node.http)],
        ["HTTP connections", format.exact(node.http_connections)],
        ["Watchers", format.exact(node.watchers)],
      ]),
    ),
    card(
      "Machine",
      facts([
        ["Python", machine.python],
        ["Kernel", machine.kernel],
        ["Processors", `${machine.cpus}${machine.cpu_list && ` (${machine.cpu_list})`}${quota}`],
        ["Memory", format.bytes(machine.memory_bytes)],
        ["Checksums", machine.checksums],
        ["File system", machine.file_system],
        ["Free disk space", format.bytes(machine.free_bytes)],
        ["File descriptors", format.exact(machine.descriptors_max)],
        ["Clock source", machine.clock_source],
      ]),
      machine.warnings.length
        ? h("ul.problems", null, machine.warnings.map((one) => h("li", null, format.visible(one))))
        : null,
    ),
    card(
      "Opening the data",
      facts([
        ["Logs", format.exact(opened.logs)],
        ["Scanned", format.bytes(opened.scanned_bytes)],
        ["Damaged logs", format.exact(opened.damaged_logs)],
      ]),
    ),
    card("For tools", h("ul.plain", null, [
      ["health/ready", "Is the node ready?"],
      ["metrics", "Metrics, for Prometheus"],
      ["docs", "All operations, for people"],
      ["openapi.json", "All operations, as OpenAPI"],
    ].map(([path, text]) => h("li", null, h("a", { href: address(path) }, `/${path}`), ` ${text}`)))),
  ];
}
