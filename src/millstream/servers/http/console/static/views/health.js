// Health: whether the node serves, what is in the way, and what it runs on.

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
      // Only what says something else is put in anew: a link keeps the focus that it has.
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
  const quota = machine.cpu_quota === null ? "" : `, of which it may use ${machine.cpu_quota}`;
  const problems = node.problems.length
    ? h("ul.problems", null, node.problems.map((one) => h("li", null, format.visible(one))))
    : h("p.good-news", null, "Nothing is wrong.");
  return [
    wide(card("Problems", problems)),
    card(
      "Node",
      facts([
        ["Version", node.version],
        ["Node id", String(node.node_id)],
        ["Up for", h("span", { title: `since ${format.moment(node.started_at)}` }, format.duration(node.uptime_ms))],
        ["Started", format.moment(node.started_at)],
        ["Data", code(node.data)],
        ["Commits by", node.commits],
        ["Event loop", node.event_loop],
      ]),
    ),
    card(
      "Doors",
      facts([
        ["Kafka", code(node.kafka)],
        ["Clients are told", code(node.advertised)],
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
        ["Processors", `${machine.cpus}${quota}`],
        ["Memory", format.bytes(machine.memory_bytes)],
        ["Checksums", machine.checksums],
        ["File system", machine.file_system],
        ["Free on disk", format.bytes(machine.free_bytes)],
        ["File descriptors", format.exact(machine.descriptors_max)],
      ]),
    ),
    card(
      "When its data was opened",
      facts([
        ["Logs", format.exact(opened.logs)],
        ["Read through", format.bytes(opened.scanned_bytes)],
        ["Damaged logs", format.exact(opened.damaged_logs)],
      ]),
    ),
    card("For machines", h("ul.plain", null, [
      ["health/ready", "Does it serve?"],
      ["metrics", "Metrics, for Prometheus"],
      ["openapi.json", "Every operation, as OpenAPI"],
    ].map(([path, text]) => h("li", null, h("a", { href: address(path) }, `/${path}`), ` ${text}`)))),
  ];
}
