// Effective configs of a topic: its own first, then the defaults.

import { action } from "../../acting/access.js";
import { editConfig } from "../../acting/topics.js";
import { get, part, repeat } from "../../api.js";
import { h } from "../../dom.js";
import * as format from "../../format.js";
import { badge, failure, Stage } from "../../parts.js";
import { matches, searchField, Table } from "../../tables.js";

const REFRESH_MS = 5_000;

export function showConfigs(inside, topic, signal) {
  let configs = [];
  let search = "";
  const table = new Table({
    label: "Configs",
    columns: [
      { id: "name", label: "Config", class: "name mono", value: (row) => row.name, show: (row) => row.name, title: (row) => row.meaning.replaceAll("`", "") },
      { id: "value", label: "Value", class: "mono wrap", stamp: (row) => `${row.value} ${row.is_set}`, show: (row) => valueOf(row), title: (row) => `${row.value}${timeOf(row)}` },
      { id: "default", label: "Default", class: "mono wrap", show: (row) => (row.is_set ? row.default || format.NOTHING : ""), isFaint: () => true },
      { id: "edit", label: "", class: "writes", stamp: (row) => JSON.stringify(row), show: (row) => editButton(row) },
    ],
    key: (row) => row.name,
    empty: "No config matches.",
  });
  const field = searchField("Search configs", (text) => {
    search = text;
    show();
  });
  const stage = new Stage(h("div.configs", null, h("div.tools", null, field), table.element));
  inside.append(stage.element);

  function editButton(row) {
    if (row.effect === "fixed") return h("span.faint", { title: "It cannot be changed." }, "fixed");
    const button = action("Edit", () => editConfig(topic, row, refresh));
    button.setAttribute("aria-label", `Edit ${row.name}`);
    return button;
  }

  function show() {
    const found = configs.filter((row) => matches(row.name, search));
    table.show([...found.filter((row) => row.is_set), ...found.filter((row) => !row.is_set)]);
  }

  const refresh = repeat(
    REFRESH_MS,
    signal,
    async () => {
      ({ configs } = await get(`/v1/topics/${part(topic)}/configs`, {}, signal));
      stage.showContent();
      show();
    },
    (error) => stage.showState(failure(error)),
  );
}

function valueOf(row) {
  const text = h("span", null, row.value === "" ? h("span.none", null, "empty") : format.visible(format.short(row.value, 300)));
  return [text, row.is_set ? badge("set", "good") : badge("default", "plain")];
}

/** Times in milliseconds are hard to read. */
function timeOf({ name, value }) {
  return name.endsWith(".ms") && Number(value) >= 1000 ? ` (${format.duration(Number(value))})` : "";
}
