// Line charts over time, drawn as SVG. A chart has few ticks, a readout under the pointer that all
// charts of a page share, and a text alternative for screen readers.

import { h, svg, fill, setText, setAttribute } from "./dom.js";
import { clock } from "./format.js";

const HEIGHT = 132;
const TOP = 8;
const BOTTOM = 18;
const RIGHT = 10;
const TICKS = 3;
const LEFT = 56;

/** A group of charts that show the same moment. */
export class ChartGroup {
  charts = [];
  at = null;

  point(at) {
    this.at = at;
    for (const chart of this.charts) chart.showReadout();
  }
}

/** One chart, of one or several lines.
 *
 * A line has `name`, `label`, and `color`, which is a class of the stylesheet; `format` formats a
 * value. With `isFilled` the area under the first line is filled.
 */
export class Chart {
  #width = 0;
  #values = [];
  #until = 0;
  #interval = 1000;
  #top = 1;

  constructor({ title, lines, format, group, steps = DECIMAL, isFilled = false, topMin = 1 }) {
    this.title = title;
    this.lines = lines;
    this.format = format;
    this.group = group;
    this.steps = steps;
    this.topMin = topMin;
    this.isFilled = isFilled;
    group.charts.push(this);
    this.legend = lines.map((line) => ({
      line,
      value: h("span.chart-value", null, "–"),
      key: h(`span.chart-key.${line.color}`, { "aria-hidden": "true" }),
    }));
    this.time = h("span.chart-time");
    this.grid = svg("g.grid");
    this.plot = svg("g.plot");
    this.cursor = svg("g.cursor");
    this.drawing = svg("svg.chart-drawing", { height: HEIGHT, "aria-hidden": "true" });
    this.drawing.append(this.grid, this.plot, this.cursor);
    this.frame = h("div.chart-frame", { tabindex: "0", role: "img" }, this.drawing);
    this.spoken = h("span.hidden", { "aria-live": "polite" });
    this.element = h(
      "section.card.chart",
      null,
      h("header", null, h("h3", null, title), this.time),
      h("div.chart-legend", null, this.legend.map((entry) => this.#entry(entry))),
      this.frame,
      this.spoken,
    );
    this.#listen();
  }

  #entry({ line, value, key }) {
    if (this.lines.length === 1) return h("span.chart-entry", null, value);
    return h("span.chart-entry", null, key, value, h("span.chart-label", null, line.label));
  }

  #listen() {
    new ResizeObserver(([entry]) => {
      this.#width = Math.floor(entry.contentRect.width);
      this.#draw();
    }).observe(this.frame);
    const point = (event) => {
      const box = this.drawing.getBoundingClientRect();
      this.group.point(this.#indexAt(event.clientX - box.left));
    };
    this.frame.addEventListener("pointermove", point);
    this.frame.addEventListener("pointerdown", point);
    this.frame.addEventListener("pointerleave", () => this.group.point(null));
    this.frame.addEventListener("blur", () => this.group.point(null));
    this.frame.addEventListener("keydown", (event) => {
      const last = this.#count - 1;
      const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30 };
      let at = this.group.at ?? last + 1;
      if (event.key in steps) at += steps[event.key];
      else if (event.key === "Home") at = 0;
      else if (event.key === "End") at = last;
      else return;
      event.preventDefault();
      this.group.point(Math.max(0, Math.min(last, at)));
      setText(this.spoken, this.#words(this.group.at));
    });
  }

  get #count() {
    return this.#values[0]?.length ?? 0;
  }

  /** Show other values: one list for each line, oldest first, null for missing samples. */
  show(values, until, interval) {
    this.#values = values;
    this.#until = until;
    this.#interval = interval;
    const known = values.flat().filter((value) => value !== null);
    this.#top = niceTop(Math.max(this.topMin, ...known), this.steps);
    this.#draw();
    const words = this.lines.map((line, index) => {
      const some = values[index].filter((value) => value !== null);
      if (!some.length) return `${line.label}: no data yet`;
      const most = Math.max(...some);
      return `${line.label}: now ${this.format(values[index].at(-1))}, highest ${this.format(most)}`;
    });
    const minutes = Math.round((this.#count * interval) / 60_000);
    const span = minutes ? `${minutes} minutes` : `${this.#count} seconds`;
    setAttribute(this.frame, "aria-label", `${this.title}, last ${span}. ${words.join(". ")}.`);
  }

  #x(index) {
    const count = Math.max(2, this.#count);
    return LEFT + (index / (count - 1)) * (this.#width - LEFT - RIGHT);
  }

  #y(value) {
    return TOP + (1 - value / this.#top) * (HEIGHT - TOP - BOTTOM);
  }

  #indexAt(x) {
    const share = (x - LEFT) / Math.max(1, this.#width - LEFT - RIGHT);
    return Math.max(0, Math.min(this.#count - 1, Math.round(share * (this.#count - 1))));
  }

  #draw() {
    if (this.#width < LEFT + RIGHT || !this.#count) return;
    this.drawing.setAttribute("width", this.#width);
    this.drawing.setAttribute("viewBox", `0 0 ${this.#width} ${HEIGHT}`);
    const grid = [];
    for (let tick = 0; tick < TICKS; tick += 1) {
      const value = (this.#top * tick) / (TICKS - 1);
      const y = Math.round(this.#y(value)) + 0.5;
      grid.push(svg(tick ? "line" : "line.base", { x1: LEFT, x2: this.#width - RIGHT, y1: y, y2: y }));
      grid.push(svg("text.y", { x: LEFT - 8, y: y + 3.5 }, this.#tick(value)));
    }
    grid.push(...this.#timeTicks());
    fill(this.grid, grid);
    const drawn = this.#values.flatMap((values, index) => this.#line(values, index));
    fill(this.plot, drawn);
    this.showReadout();
  }

  /** Format a value for the axis, without "per second", which is in the title. */
  #tick(value) {
    if (value === 0) return "0";
    return this.format(value).replace("/s", "").replace(/(\.\d*?)0+(?= |$)/, "$1").replace(/\.(?= |$)/, "");
  }

  #timeTicks() {
    const found = [];
    const span = (this.#count - 1) * this.#interval;
    const step = span > 150_000 ? (this.#width < 420 ? 120_000 : 60_000) : span > 50_000 ? 30_000 : 10_000;
    for (let back = 0; back <= span; back += step) {
      const x = this.#x(this.#count - 1 - back / this.#interval);
      const text = back === 0 ? "now" : back % 60_000 ? `-${back / 1000} s` : `-${back / 60_000} min`;
      if (x < LEFT + 14) break;
      found.push(svg(back ? "text.x" : "text.x.last", { x, y: HEIGHT - 4 }, text));
    }
    return found;
  }

  #line(values, index) {
    const color = this.lines[index].color;
    const pieces = [];
    let piece = [];
    for (const [at, value] of values.entries()) {
      if (value === null) {
        if (piece.length) pieces.push(piece);
        piece = [];
      } else piece.push([this.#x(at), this.#y(value)]);
    }
    if (piece.length) pieces.push(piece);
    const path = (points) => points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L");
    const found = [];
    const floor = this.#y(0).toFixed(1);
    const long = pieces.filter((one) => one.length > 1);
    if (this.isFilled && index === 0 && long.length) {
      const d = long.map(
        (one) => `M${path(one)}L${one.at(-1)[0].toFixed(1)},${floor}L${one[0][0].toFixed(1)},${floor}Z`,
      );
      found.push(svg(`path.area.${color}`, { d: d.join("") }));
    }
    found.push(svg(`path.line.${color}`, { d: long.map((one) => `M${path(one)}`).join("") }));
    for (const [[x, y]] of pieces.filter((one) => one.length === 1))
      found.push(svg(`circle.${color}`, { cx: x.toFixed(1), cy: y.toFixed(1), r: 1.6 }));
    return found;
  }

  /** Show the values at the group's pointer, or the newest. */
  showReadout() {
    const isPointed = this.group.at !== null && this.group.at < this.#count;
    const at = isPointed ? this.group.at : this.#count - 1;
    for (const [index, { value }] of this.legend.entries())
      setText(value, this.format(this.#values[index]?.[at] ?? null));
    setText(this.time, isPointed ? clock(this.#momentOf(at)).slice(0, 8) : "");
    if (!isPointed) {
      if (this.cursor.firstChild) fill(this.cursor);
      return;
    }
    const x = Math.round(this.#x(at)) + 0.5;
    const marks = [svg("line", { x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM })];
    for (const [index, line] of this.lines.entries()) {
      const value = this.#values[index][at];
      if (value !== null)
        marks.push(svg(`circle.${line.color}`, { cx: x, cy: this.#y(value).toFixed(1), r: 3 }));
    }
    fill(this.cursor, marks);
  }

  #momentOf(at) {
    return this.#until - (this.#count - 1 - at) * this.#interval;
  }

  #words(at) {
    const values = this.lines.map(
      (line, index) => `${line.label} ${this.format(this.#values[index][at])}`,
    );
    return `${clock(this.#momentOf(at)).slice(0, 8)}: ${values.join(", ")}`;
  }
}

/** Decimal units. */
export const DECIMAL = 1000;

/** Binary units. */
export const BINARY = 1024;

const STEPS = [1, 10, 100].flatMap((power) => [1, 1.2, 1.6, 2, 3, 4, 5, 6, 8].map((one) => one * power));

/** Return the smallest round number that is not less, half of which is round too. */
function niceTop(value, base) {
  let unit = 1;
  while (value / unit >= base) unit *= base;
  while (value / unit < 1 && unit > 1e-6) unit /= 10;
  for (const step of STEPS)
    if (value <= step * unit) return step * unit;
  return base * unit;
}
