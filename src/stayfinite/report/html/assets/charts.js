// Plots as SVG: envelopes (least and greatest of every bucket), non-finite values as marks in a lane of their own.
// Text from the data is set as text only. Nothing here knows where the data come from.

const LEFT = 58, RIGHT = 10, TOP = 8, BOTTOM = 22, LANE = 15, NAME_LANE = 14, HEIGHT = 180;
const KNOWN_ACTIONS = ["skip", "lower-lr", "rollback", "stop", "backoff", "leave-out", "forecast"];
const FULL_HEIGHT_ACTIONS = ["lower-lr", "rollback", "stop", "forecast"];

// What the plots of one group share: the part of the run they show, the cursor, the marks of actions.
class Group {
  constructor() { this.charts = []; this.view = null; this.cursor = null; this.actions = new Map(); this.pending = false; }

  extent() {
    let low = Infinity, high = -Infinity;
    for (const chart of this.charts) {
      for (const series of chart.series.values()) {
        const list = series.list();
        if (list.length) { low = Math.min(low, list[0].first); high = Math.max(high, list[list.length - 1].x); }
      }
      if (typeof chart.spec.fails === "number") { low = Math.min(low, chart.spec.fails); high = Math.max(high, chart.spec.fails); }
    }
    return low <= high ? [low, high === low ? low + 1 : high] : [0, 1];
  }

  range() { return this.view || this.extent(); }

  show(view) {
    if (view) {
      const [low, high] = this.extent();
      view = [Math.max(low, view[0]), Math.min(high, view[1])];
      if (view[1] - view[0] < 2 || (view[0] <= low && view[1] >= high)) view = view[1] - view[0] < 2 ? this.view : null;
    }
    this.view = view;
    this.redraw();
  }

  point(x) { this.cursor = x; for (const chart of this.charts) chart.drawCursor(); }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; for (const chart of this.charts) chart.draw(); });
  }
}

class Chart {
  constructor(spec, group, parent) {
    this.spec = spec; this.group = group; this.series = new Map(); // names come from outside: no plain object
    this.figure = htmlNode("figure", "chart");
    parent.insertBefore(this.figure, [...parent.children].find((other) => Number(other.dataset.order) > spec.order) || null);
    this.figure.dataset.chart = spec.id;
    this.figure.dataset.order = spec.order;
    const caption = htmlNode("figcaption", "", undefined, this.figure);
    htmlNode("span", "name", spec.title, caption);
    this.read = htmlNode("span", "read", "", caption);
    this.svg = svgNode("svg", { role: "img", tabindex: "0", focusable: "true" }, this.figure);
    this.names = htmlNode("p", "names", undefined, this.figure);
    this.listen();
    group.charts.push(this);
    new ResizeObserver(() => group.redraw()).observe(this.figure);
  }

  apply(all) {
    for (const name of Object.keys(all)) {
      if (!this.series.has(name)) this.series.set(name, new Series());
      this.series.get(name).apply(all[name]);
    }
    this.nameSeries();
  }

  nameSeries() {
    const names = [...this.series.keys()];
    if (names.length < 2 || names.length === this.names.childElementCount) return;
    this.names.replaceChildren();
    names.forEach((name, i) => {
      const entry = htmlNode("span", "", undefined, this.names);
      const line = htmlNode("i", "", undefined, entry);
      const [color, dash] = this.look(name, i);
      line.style.borderTopColor = `var(--s${color})`;
      line.style.borderTopStyle = ["solid", "dashed", "dotted", "double"][dash % 4];
      entry.appendChild(document.createTextNode(name));
    });
  }

  // Colour and dashes of a series: as the data say, else by its place.
  look(name, index) {
    const styles = this.spec.styles;
    const [color, dash] = styles && Object.hasOwn(styles, name) ? styles[name] : [index, Math.floor(index / 8)];
    return [color % 8, dash];
  }

  plotWidth() { return Math.max(40, this.figure.clientWidth - LEFT - RIGHT); }
  x(step) { const [low, high] = this.group.range(); return LEFT + ((step - low) / (high - low)) * this.plotWidth(); }
  step(x) { const [low, high] = this.group.range(); return low + ((x - LEFT) / this.plotWidth()) * (high - low); }

  draw() {
    if (!this.figure.clientWidth) return;
    const [from, to] = this.group.range();
    const shown = [...this.series.values()].map((series) => series.list().filter((b) => b.first + series.width > from && b.first <= to));
    let low = Infinity, high = -Infinity, nan = 0, inf = 0;
    for (const list of shown) {
      for (const bucket of list) {
        if (bucket.low !== null) { low = Math.min(low, bucket.low); high = Math.max(high, bucket.high); }
        if (bucket.bad) { nan += bucket.bad[0]; inf += bucket.bad[1] + bucket.bad[2]; }
      }
    }
    const finite = low <= high;
    const limited = finite && typeof this.spec.limit === "number" && this.spec.limit > 0;
    if (limited) { low = Math.min(low, this.spec.limit); high = Math.max(high, this.spec.limit); }
    const lane = nan + inf ? LANE : 0;
    const above = limited ? NAME_LANE : 0; // the name of the limit stands above everything that it could be crossed by
    const room = HEIGHT - TOP - BOTTOM - lane - above, top = TOP + lane + above;
    const scale = finite ? new Scale(low, high, room) : new Scale(0, 1, room);
    const y = (value) => top + scale.y(value);
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${this.figure.clientWidth} ${HEIGHT}`);
    this.drawAxes(scale, y, finite, lane, top, room);
    this.drawActions(top, room);
    shown.forEach((list, i) => this.drawSeries(list, i, y));
    shown.forEach((list) => this.drawMarks(list));
    if (limited) this.drawLimit(y(this.spec.limit), top);
    this.cursorLayer = svgNode("g", {}, this.svg);
    const steps = `steps ${Math.ceil(from).toLocaleString("en")} to ${Math.floor(to).toLocaleString("en")}`;
    const span = finite ? `, from ${figure(low)} to ${figure(high)}` : ", no finite value";
    this.svg.setAttribute("aria-label", `${this.spec.title}, ${steps}${span}, ${nan} NaN, ${inf} Inf`);
    this.figure.dataset.drawn = "yes";
    this.drawCursor();
  }

  drawAxes(scale, y, finite, lane, top, room) {
    const right = LEFT + this.plotWidth();
    for (const value of finite ? scale.ticks() : []) {
      const at = y(value);
      if (at < top - 1 || at > top + room + 1) continue;
      svgNode("path", { class: "grid", d: `M${LEFT} ${at.toFixed(1)}H${right}` }, this.svg);
      svgNode("text", { x: LEFT - 6, y: (at + 4).toFixed(1), "text-anchor": "end" }, this.svg).textContent = figure(value);
    }
    const [from, to] = this.group.range();
    const ticks = niceTicks(from, to, Math.max(2, this.plotWidth() / 90)).filter((value) => Number.isInteger(value));
    for (const value of ticks) {
      const at = this.x(value);
      svgNode("path", { class: "axis", d: `M${at.toFixed(1)} ${top + room}v4` }, this.svg);
      const anchor = at > right - 16 ? "end" : "middle";
      svgNode("text", { x: at.toFixed(1), y: HEIGHT - 5, "text-anchor": anchor }, this.svg).textContent = value.toLocaleString("en");
    }
    svgNode("path", { class: "axis", d: `M${LEFT} ${top + room}H${right}` }, this.svg);
    svgNode("text", { x: 0, y: HEIGHT - 5 }, this.svg).textContent = "step";
    if (lane) {
      svgNode("rect", { class: "lane", x: LEFT, y: TOP - 2, width: this.plotWidth(), height: LANE - 3, rx: 2 }, this.svg);
      svgNode("text", { class: "beyond", x: LEFT - 6, y: TOP + 8, "text-anchor": "end" }, this.svg).textContent = "not finite";
    }
  }

  drawSeries(list, index, y) {
    const [number, dash] = this.look([...this.series.keys()][index], index), color = `var(--s${number})`;
    let upper = "", lower = [], middle = "", pen = "M", wide = false, alone = 0, dots = "";
    const band = () => {
      if (wide && lower.length > 1) svgNode("path", { class: "band", d: upper + lower.reverse().join("") + "Z", fill: color }, this.svg);
      upper = ""; lower = []; wide = false; pen = "M"; alone = 0;
    };
    for (const bucket of list) {
      if (bucket.low === null) { band(); continue; }
      const x = this.x(bucket.x).toFixed(1), a = y(bucket.low), b = y(bucket.high);
      upper += `${upper ? "L" : "M"}${x} ${b.toFixed(1)}`;
      lower.push(`L${x} ${a.toFixed(1)}`);
      middle += `${pen}${x} ${((a + b) / 2).toFixed(1)}`;
      pen = "L";
      if (bucket.high !== bucket.low) wide = true;
      if (list.length <= 60 && this.series.size <= 8) dots += `M${x} ${((a + b) / 2).toFixed(1)}h0`;
      else if (alone++ === 0) dots += `M${x} ${((a + b) / 2).toFixed(1)}h0`;
    }
    band();
    if (!middle) return;
    const wire = svgNode("path", { class: "wire", d: middle, stroke: color }, this.svg);
    if (dash) wire.setAttribute("stroke-dasharray", ["", "6 3", "2 3", "8 2 2 2"][dash % 4]);
    if (dots) svgNode("path", { d: dots, stroke: color, "stroke-width": list.length <= 60 ? 4 : 2, "stroke-linecap": "round", fill: "none" }, this.svg);
  }

  drawMarks(list) {
    const seen = [new Set(), new Set(), new Set()], drawn = ["", "", ""];
    const shape = [(x, y) => `M${x - 3.5} ${y - 3.5}l7 7m0-7l-7 7`, (x, y) => `M${x} ${y - 4}l4.5 8h-9Z`, (x, y) => `M${x} ${y + 4}l4.5-8h-9Z`];
    for (const bucket of list) {
      if (!bucket.bad) continue;
      const x = Math.round(this.x(bucket.x));
      bucket.bad.forEach((count, kind) => {
        if (count && !seen[kind].has(x)) { seen[kind].add(x); drawn[kind] += shape[kind](x, TOP + 4); }
      });
    }
    drawn.forEach((d, kind) => { if (d) svgNode("path", { class: kind ? "inf" : "nan", d, "data-mark": kind ? "inf" : "nan" }, this.svg); });
  }

  drawActions(top, room) {
    const [from, to] = this.group.range();
    for (const [action, series] of this.group.actions) {
      let d = "";
      const seen = new Set();
      for (const bucket of series.list()) {
        if (bucket.x < from || bucket.x > to) continue;
        const x = Math.round(this.x(bucket.x));
        if (!seen.has(x)) { seen.add(x); d += FULL_HEIGHT_ACTIONS.includes(action) ? `M${x} ${top}v${room}` : `M${x} ${top + room}v-7`; }
      }
      if (d) svgNode("path", { class: KNOWN_ACTIONS.includes(action) ? `a-${action}` : "a-other", d, fill: "none" }, this.svg);
    }
    if (typeof this.spec.fails === "number") {
      svgNode("path", { class: "fails", d: `M${this.x(this.spec.fails).toFixed(1)} ${top}v${room}` }, this.svg);
    }
  }

  drawLimit(at, top) {
    const right = LEFT + this.plotWidth();
    svgNode("path", { class: "limit", d: `M${LEFT} ${at.toFixed(1)}H${right}` }, this.svg);
    svgNode("text", { class: "limit-name", x: right, y: top - 3, "text-anchor": "end" }, this.svg).textContent = `limit ${figure(this.spec.limit)}`;
  }

  drawCursor() {
    if (!this.cursorLayer) return;
    this.cursorLayer.replaceChildren();
    if (this.dragged) {
      const [a, b] = [this.dragged[0], this.dragged[1]].sort((p, q) => p - q);
      svgNode("rect", { class: "selection", x: a, y: TOP, width: b - a, height: HEIGHT - TOP - BOTTOM }, this.cursorLayer);
    }
    const cursor = this.group.cursor;
    if (cursor === null) { this.read.textContent = ""; return; }
    const parts = [];
    let at = null;
    for (const [name, series] of this.series) {
      const bucket = series.nearest(cursor);
      if (!bucket) continue;
      at = at || [bucket, series.width];
      const value = bucket.low === null ? "" : bucket.low === bucket.high ? figure(bucket.low) : `${figure(bucket.low)} … ${figure(bucket.high)}`;
      const bad = (bucket.bad || []).map((count, kind) => (count ? `${count > 1 ? count + " " : ""}${["NaN", "Inf", "−Inf"][kind]}` : "")).filter(Boolean);
      const text = [value, ...bad].filter(Boolean).join(", ");
      parts.push(this.series.size > 1 ? `${name} ${text}` : text);
    }
    if (!at) return;
    const [bucket, width] = at;
    const x = this.x(Math.min(Math.max(bucket.x, this.group.range()[0]), this.group.range()[1]));
    svgNode("path", { class: "cursor", d: `M${x.toFixed(1)} ${TOP}V${HEIGHT - BOTTOM}` }, this.cursorLayer);
    const steps = width > 1 ? `steps ${bucket.first.toLocaleString("en")}–${(bucket.first + width - 1).toLocaleString("en")}` : `step ${bucket.first.toLocaleString("en")}`;
    this.read.textContent = `${steps}: ${parts.join("; ")}`;
  }

  listen() {
    const place = (event) => event.clientX - this.svg.getBoundingClientRect().left;
    this.svg.addEventListener("pointermove", (event) => {
      if (this.dragged) this.dragged[1] = place(event);
      this.group.point(this.step(place(event)));
    });
    this.svg.addEventListener("pointerleave", () => { if (!this.dragged) this.group.point(null); });
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      this.svg.setPointerCapture(event.pointerId);
      this.dragged = [place(event), place(event)];
    });
    const release = () => {
      if (!this.dragged) return;
      const [a, b] = this.dragged.map((x) => this.step(x)).sort((p, q) => p - q);
      const far = Math.abs(this.dragged[1] - this.dragged[0]) > 6;
      this.dragged = null;
      if (far) this.group.show([a, b]); else this.drawCursor();
    };
    this.svg.addEventListener("pointerup", release);
    this.svg.addEventListener("pointercancel", () => { this.dragged = null; this.drawCursor(); });
    this.svg.addEventListener("dblclick", () => this.group.show(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("focus", () => this.read.setAttribute("aria-live", "polite")); // of all plots that follow, one speaks
    this.svg.addEventListener("blur", () => { this.read.removeAttribute("aria-live"); this.group.point(null); });
  }

  key(event) {
    const [from, to] = this.group.range(), first = this.series.values().next().value;
    if (!first) return;
    const list = first.list(), now = this.group.cursor === null ? from : this.group.cursor;
    const index = list.indexOf(first.nearest(now));
    const go = (i) => this.group.point(list[Math.min(Math.max(i, 0), list.length - 1)].x);
    const span = to - from, middle = this.group.cursor === null ? (from + to) / 2 : this.group.cursor;
    const zoom = (by) => this.group.show([middle - (span * by) / 2, middle + (span * by) / 2]);
    const keys = {
      ArrowRight: () => go(index + (event.shiftKey ? 10 : 1)), ArrowLeft: () => go(index - (event.shiftKey ? 10 : 1)),
      Home: () => go(0), End: () => go(list.length - 1), Escape: () => this.group.show(null),
      "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "−": () => zoom(2),
    };
    if (keys[event.key]) { keys[event.key](); event.preventDefault(); }
  }
}

// All plots of a page by id; plots are made where their group has a place.
const Plots = {
  groups: {}, charts: {}, waiting: [],

  group(name) { return this.groups[name] || (this.groups[name] = new Group()); },

  add(specs) {
    for (const spec of [...this.waiting.splice(0), ...specs]) {
      const known = this.charts[spec.id];
      if (known) {
        Object.assign(known.spec, { limit: spec.limit, fails: spec.fails });
        known.apply(spec.series);
        known.group.redraw();
        continue;
      }
      const parent = [...document.querySelectorAll("[data-charts]")].find((node) => node.dataset.charts === spec.group);
      if (!parent) { this.waiting.push(spec); continue; }
      const chart = new Chart(spec, this.group(spec.group), parent);
      this.charts[spec.id] = chart;
      chart.apply(spec.series);
      chart.group.redraw();
    }
  },

  patch(all) {
    for (const [id, series] of Object.entries(all)) {
      if (this.charts[id]) { this.charts[id].apply(series); this.charts[id].group.redraw(); }
    }
  },

  act(all) {
    const group = this.group("run");
    for (const [action, patch] of Object.entries(all)) {
      if (!group.actions.has(action)) group.actions.set(action, new Series());
      group.actions.get(action).apply(patch);
    }
    group.redraw();
    if (Heat.map) Heat.map.drawMarks();
  },

  clear(name) {
    for (const chart of this.group(name).charts) { chart.figure.remove(); delete this.charts[chart.spec.id]; }
    delete this.groups[name];
  },
};
