// One queue: its counts, its jobs and its dead letters. Browsing claims none.

import { get, Pages, part, repeat } from "../api.js";
import { decodersOf } from "../decoding/decoders.js";
import { fill, h, setText } from "../dom.js";
import * as format from "../format.js";
import { parseExactly } from "../json.js";
import { badge, card, facts, failure, Figures, head, More, Stage, tabs } from "../parts.js";
import { details, preview, ShownRecord } from "../records.js";
import { link } from "../routes.js";
import { showDeadLetters } from "./dead_letters.js";

const REFRESH_MS = 1_500;
const PAGE = 50;
const DEAD = "dead";
const STATES = ["ready", "leased", "delayed", DEAD];

export async function showQueue(place, { names: [name], query, signal }) {
  const state = STATES.includes(query.get("state")) ? query.get("state") : "ready";
  const figures = new Figures([
    ["ready", "Ready"],
    ["leased", "Leased"],
    ["delayed", "Delayed"],
    ["dead", "Dead"],
    ["acked", "Done"],
    ["enqueued", "Enqueued"],
    ["delivered", "Delivered"],
  ]);
  const split = h("div.split", { role: "img" });
  const settings = h("div");
  const isDead = state === DEAD;
  const listed = h("div.listed");
  const jobs = new JobTable(name);
  const pages = new Pages(`/v1/queues/${part(name)}/jobs`, "jobs", { state }, PAGE, parseExactly);
  const more = new More("jobs", async () => {
    await pages.more(signal);
    show();
  });
  const entries = STATES.map((one) => [one, h("span", null, one), link(["queues", name], { state: one })]);
  const stage = new Stage(
    h(
      "div",
      null,
      figures.element,
      split,
      tabs("Jobs by state", entries, state),
      listed,
      card("Settings", settings),
    ),
  );
  fill(place, head(name, { path: [["Queues", link("queues")]] }), stage.element);
  const decoder = (await decodersOf([name], signal)).get(name);
  if (signal.aborted) return;
  jobs.decoder = decoder;
  if (!isDead) listed.append(jobs.element, more.element);
  const noteQueue = isDead ? showDeadLetters(listed, name, decoder, signal) : () => {};

  function show() {
    jobs.show(pages.items, state);
    more.show(pages.items.length, pages.hasMore);
  }

  repeat(
    REFRESH_MS,
    signal,
    async () => {
      const [queue] = await Promise.all([
        get(`/v1/queues/${part(name)}`, {}, signal),
        isDead ? null : pages.refresh(signal),
      ]);
      stage.showContent();
      noteQueue(queue);
      for (const one of ["ready", "leased", "delayed", "dead", "acked", "enqueued", "delivered"])
        figures.set(one, format.count(queue[one]), format.exact(queue[one]));
      for (const [one, text] of entries) setText(text, `${title(one)} ${format.count(queue[one])}`);
      drawSplit(split, queue);
      showSettings(settings, queue);
      if (!isDead) show();
    },
    (error) => stage.showState(failure(error, "queues")),
  );
}

function title(word) {
  return word[0].toUpperCase() + word.slice(1);
}

/** Draw the jobs by state. */
function drawSplit(place, queue) {
  const parts = ["acked", "leased", "ready", "delayed", "dead"];
  const words = parts.map((one) => `${format.exact(queue[one])} ${one === "acked" ? "done" : one}`).join(", ");
  if (place.getAttribute("aria-label") === words) return;
  place.setAttribute("aria-label", words);
  place.title = words;
  fill(
    place,
    parts.filter((one) => queue[one]).map((one) => {
      const piece = h(`span.part.${one}`);
      piece.style.flexGrow = queue[one];
      return piece;
    }),
  );
}

function showSettings(place, queue) {
  const rows = [
    ["Lease", format.duration(queue.lease_ms)],
    ["Maximum deliveries", format.exact(queue.deliveries_max)],
    ["Claim window", queue.claim_window_ms ? format.duration(queue.claim_window_ms) : "none"],
    ["Removed before they were done", format.exact(queue.removed)],
    ["Damaged batches", format.exact(queue.damaged)],
    ["Topic", h("a", { href: link(["topics", queue.name]) }, queue.name)],
    [
      "Dead letters",
      h(
        "span",
        null,
        h("a", { href: link(["queues", queue.name], { state: DEAD }) }, queue.dead_letter),
        ` (${format.exact(queue.dead)})`,
      ),
    ],
  ];
  const stamp = rows.map(([, value]) => value.textContent ?? value).join("\n");
  if (place.dataset.stamp === stamp) return;
  place.dataset.stamp = stamp;
  fill(place, facts(rows));
}

/** A table of jobs that can be expanded. */
class JobTable {
  #open = new Set();
  #stamp = "";

  constructor(queue) {
    this.queue = queue;
    this.decoder = null;
    this.body = h("tbody");
    const heads = ["Offset", "Deliveries", "State", "Worker", "Enqueued", "Key", "Value"].map((text) =>
      h("th", { scope: "col", class: ["Offset", "Deliveries"].includes(text) ? "number" : null }, text),
    );
    const table = h("table.jobs", { "aria-label": "Jobs" }, h("thead", null, h("tr", null, heads)), this.body);
    this.element = h("div.table", { role: "region", "aria-label": "Jobs", tabindex: "0" }, table);
  }

  show(jobs, state) {
    const focused = document.activeElement?.closest?.("[data-job]")?.dataset.job;
    const rows = jobs.flatMap((job) => this.#rows(job));
    if (!rows.length) {
      const cell = h("td.empty", { colspan: "7" }, `No jobs are ${state}.`);
      rows.push(h("tr", null, cell));
    }
    // Only the times change every second; the other cells stay.
    const stamp = JSON.stringify([jobs.map((job) => [job.partition, job.offset, job.state, job.deliveries, job.worker]), [...this.#open]]);
    if (stamp === this.#stamp) this.#showTimes(jobs);
    else {
      this.#stamp = stamp;
      fill(this.body, rows);
      if (focused) this.body.querySelector(`[data-job="${CSS.escape(focused)}"]`)?.focus();
    }
  }

  #showTimes(jobs) {
    const rows = this.body.querySelectorAll("[data-job]");
    for (const [at, job] of jobs.entries()) setText(rows[at].querySelector(".when"), when(job));
  }

  #rows(job) {
    const key = `${job.partition}:${job.offset}`;
    const record = new ShownRecord(this.queue, job.partition, job, this.decoder);
    const isOpen = this.#open.has(key);
    const toggle = () => {
      if (!this.#open.delete(key)) this.#open.add(key);
      const next = row.nextElementSibling;
      row.setAttribute("aria-expanded", String(this.#open.has(key)));
      if (next?.matches(".detail-row")) next.remove();
      else row.after(detailRow(record, job));
    };
    const row = h(
      "tr.record",
      { "data-row": true, "data-job": key, tabindex: "-1", "aria-expanded": String(isOpen) },
      h("th.number", { scope: "row", title: `partition ${job.partition}` }, `${job.partition}/${format.exact(job.offset)}`),
      h("td.number", { "data-label": "deliveries" }, format.exact(job.deliveries)),
      h("td", null, badge(job.state, job.state === "leased" ? "warn" : "plain"), " ", h("span.when", null, when(job))),
      h(job.worker ? "td" : "td.is-none", { "data-label": "worker" }, job.worker ? format.visible(job.worker) : format.NOTHING),
      h("td", { title: format.moment(job.timestamp) }, format.ago(job.timestamp)),
      h("td.key", null, preview(record.key)),
      h("td.value", null, preview(record.value)),
    );
    row.addEventListener("click", () => String(getSelection()) || toggle());
    row.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      toggle();
    });
    return isOpen ? [row, detailRow(record, job)] : [row];
  }
}

function when(job) {
  if (job.ready_in_ms === null) return "";
  const time = format.duration(Math.max(0, job.ready_in_ms));
  return job.state === "leased" ? `${time} left` : `ready in ${time}`;
}

function detailRow(record, job) {
  const extra = [["Deliveries", format.exact(job.deliveries)]];
  if (job.worker) extra.push(["Worker", job.worker]);
  return h("tr.detail-row", null, h("td", { colspan: "7" }, details(record, extra)));
}
