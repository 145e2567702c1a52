"use strict";
// What plots are made of: nodes, numbers as text, series in buckets, scales. Text from the data is set as text only.

const SVG = "http://www.w3.org/2000/svg";

function svgNode(name, attributes, parent) {
  const node = document.createElementNS(SVG, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (parent) parent.appendChild(node);
  return node;
}

function htmlNode(name, className, text, parent) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}

function figure(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return { nan: "NaN", inf: "Inf", "-inf": "−Inf" }[value] || value;
  if (value === 0) return "0";
  const size = Math.abs(value);
  let text;
  if (size >= 1e5 || size < 1e-3) {
    text = value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  } else {
    text = String(Number(value.toPrecision(size >= 1e4 ? 5 : 4)));
  }
  return text.replace(/-/g, "−");
}

// Buckets by number. A patch holds absolute buckets, so that applying it twice does no harm.
class Series {
  constructor() { this.width = 1; this.buckets = new Map(); this.sorted = null; }

  apply(patch) {
    if (patch.whole || patch.width !== this.width) { this.buckets.clear(); this.width = patch.width; }
    const high = patch.high || patch.low;
    patch.at.forEach((at, i) => this.buckets.set(at, { at, low: patch.low[i], high: high[i], bad: null }));
    for (const [i, nan, inf, below] of patch.bad || []) this.buckets.get(patch.at[i]).bad = [nan, inf, below];
    this.sorted = null;
  }

  list() {
    if (!this.sorted) {
      this.sorted = [...this.buckets.values()].sort((a, b) => a.at - b.at);
      for (const bucket of this.sorted) {
        bucket.first = bucket.at * this.width;
        bucket.x = bucket.first + (this.width - 1) / 2;
      }
    }
    return this.sorted;
  }

  nearest(x) {
    const list = this.list();
    if (!list.length) return null;
    let from = 0, to = list.length - 1;
    while (from < to) { const middle = (from + to) >> 1; if (list[middle].x < x) from = middle + 1; else to = middle; }
    const before = list[from - 1];
    return before && x - before.x < list[from].x - x ? before : list[from];
  }
}

class Scale {
  constructor(low, high, room) {
    this.log = low > 0 && high / low > 3;
    this.signed = !this.log && low <= 0 && Math.max(high, -low) > 1e4;
    this.unit = this.signed ? Math.max(high, -low) / 1e6 : 1;
    let a = this.raw(low), b = this.raw(high);
    const pad = (b - a) * 0.05 || Math.abs(a) * 0.1 || 1;
    this.low = a - pad; this.high = b + pad; this.room = room;
    this.least = low; this.most = high;
  }

  raw(value) {
    if (this.log) return Math.log10(value);
    return this.signed ? Math.asinh(value / this.unit) : value;
  }

  y(value) { return this.room * (1 - (this.raw(value) - this.low) / (this.high - this.low)); }

  ticks() {
    if (this.log) {
      const from = Math.floor(this.low), to = Math.floor(this.high), by = Math.max(1, Math.ceil((to - from) / 5));
      const within = (value) => Math.log10(value) >= this.low && Math.log10(value) <= this.high;
      for (const parts of [[1], [1, 3], [1, 2, 5]]) {
        const made = [];
        for (let power = from; power <= to; power += by) made.push(...parts.map((part) => Number(`${part}e${power}`)));
        if (made.filter(within).length > 2) return made.filter(within);
      }
    }
    if (this.signed) {
      const top = Math.floor(Math.log10(Math.max(this.most, -this.least, 1)));
      const made = [0];
      for (let power = top; power > top - 6; power -= 2) made.push(Number(`1e${power}`), -Number(`1e${power}`));
      return made.filter((value) => this.raw(value) > this.low && this.raw(value) < this.high);
    }
    const back = (value) => (this.log ? 10 ** value : value);
    return niceTicks(back(this.low), back(this.high), 4);
  }
}

function niceTicks(low, high, about) {
  const rough = (high - low) / about;
  if (!(rough > 0) || !isFinite(rough)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const by = [1, 2, 5, 10].find((step) => step * power >= rough) * power;
  const made = [];
  for (let value = Math.ceil(low / by) * by; value <= high && made.length < 12; value += by) {
    made.push(Math.abs(value) < by / 1e6 ? 0 : Number(value.toPrecision(12)));
  }
  return made;
}
