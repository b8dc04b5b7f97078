// Pipelines: publishers that write exactly once into the node.

import { Pages, repeat } from "../api.js";
import { fill, h } from "../dom.js";
import * as format from "../format.js";
import { badge, failure, head, More, nothing, Stage } from "../parts.js";
import { matches, searchField, Table } from "../tables.js";

const REFRESH_MS = 2_000;
const PAGE = 100;

export function showPipelines(place, { signal }) {
  const pages = new Pages("/v1/pipelines", "pipelines", {}, PAGE);
  let search = "";
  const table = new Table({
    label: "Pipelines",
    columns: [
      { id: "name", label: "Pipeline", class: "name", value: (row) => row.name ?? "", show: (row) => format.visible(row.name ?? "no name since the node started"), title: (row) => format.visible(row.name ?? "") },
      { id: "kind", label: "Kind", value: (row) => row.kind, stamp: (row) => row.kind, show: (row) => badge(row.kind, "plain") },
      { id: "sequence", label: "Publication", isNumber: true, hint: "Number of the last publication: for a stream, its micro-batch", value: (row) => row.sequence, show: (row) => format.exact(row.sequence) },
      { id: "age_ms", label: "Last", isNumber: true, hint: "Age of the last publication", value: (row) => row.age_ms, show: (row) => `${format.duration(row.age_ms)} ago`, title: (row) => `${format.exact(row.age_ms)} ms` },
      { id: "publisher", label: "Publisher", class: "name mono", value: (row) => row.publisher, show: (row) => format.visible(row.publisher), title: (row) => format.visible(row.publisher) },
    ],
    key: (row) => row.publisher,
    empty: "No pipeline matches.",
  });
  const more = new More("pipelines", async () => {
    await pages.more(signal);
    show();
  });
  const total = h("span.count");
  const field = searchField("Search pipelines", (text) => {
    search = text;
    show();
  });
  const stage = new Stage(h("div", null, table.element, more.element));
  fill(place, head("Pipelines", { badges: [total], tools: [field] }), stage.element);

  function show() {
    const found = pages.items.filter((row) => matches(`${row.name ?? ""} ${row.publisher} ${row.kind}`, search));
    table.show(search ? found : pages.items);
    more.show(pages.items.length, pages.hasMore);
    const all = `${format.exact(pages.items.length)}${pages.hasMore ? "+" : ""}`;
    total.textContent = search ? `${format.exact(found.length)} of ${all}` : all;
  }

  repeat(
    REFRESH_MS,
    signal,
    async () => {
      await pages.refresh(signal);
      if (!pages.items.length) {
        total.textContent = "";
        stage.showState(
          nothing("No pipelines yet", "Publishers that write exactly once into this node are listed here: Spark jobs with format(\"millstream\"), and pipelines from files.", "millstream pipeline run pipeline.toml"),
        );
        return;
      }
      stage.showContent();
      show();
    },
    (error) => stage.showState(failure(error)),
  );
}
