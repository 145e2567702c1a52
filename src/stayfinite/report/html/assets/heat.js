// The heat map: modules down, time across. One pixel of the canvas is one cell; the browser enlarges it.

class HeatMap {
  constructor(place) {
    this.width = 1; this.modules = []; this.columns = new Map(); this.metric = 0; this.at = null; this.limit = null;
    const tools = htmlNode("div", "heat-tools", undefined, place);
    const choice = htmlNode("fieldset", "", undefined, tools);
    htmlNode("legend", "", "Show", choice);
    ["largest output", "rms", "gain"].forEach((name, i) => {
      const label = htmlNode("label", "", undefined, choice);
      const input = htmlNode("input", "", undefined, label);
      input.type = "radio"; input.name = "heat-metric"; input.checked = i === 0;
      input.addEventListener("change", () => { this.metric = i; this.draw(); });
      label.appendChild(document.createTextNode(` ${name}`));
    });
    const scale = htmlNode("span", "scale", undefined, tools);
    this.least = htmlNode("span", "", "", scale); htmlNode("i", "", "", scale); this.most = htmlNode("span", "", "", scale);
    htmlNode("b", "", "", scale); htmlNode("span", "", "not finite", scale);
    this.read = htmlNode("output", "", "", tools);
    const grid = htmlNode("div", "heat", undefined, place);
    this.rows = htmlNode("div", "rows", undefined, grid);
    const cells = htmlNode("div", "cells", undefined, grid);
    this.canvas = htmlNode("canvas", "", undefined, cells);
    this.marks = svgNode("svg", { class: "heat-marks", "aria-hidden": "true", preserveAspectRatio: "none" }, cells);
    this.canvas.tabIndex = 0; this.canvas.setAttribute("role", "img");
    this.steps = htmlNode("div", "steps", undefined, grid);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.at = null; this.tell(); });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  apply(patch) {
    if (patch.whole || patch.width !== this.width) { this.columns.clear(); this.width = patch.width; }
    this.order = patch.order; this.modules = patch.order.map((index) => patch.modules[index]);
    for (const [number, cells] of patch.columns) this.columns.set(number, cells);
    this.draw();
  }

  value(column, row) {
    const cell = column && column[this.order[row]];
    return cell ? cell[this.metric] : null;
  }

  draw() {
    const numbers = [...this.columns.keys()].sort((a, b) => a - b);
    this.numbers = numbers;
    if (!numbers.length) return;
    const rows = this.modules.length, height = Math.max(2, Math.min(18, Math.floor(560 / rows)));
    let low = Infinity, high = -Infinity;
    for (const number of numbers) {
      for (let row = 0; row < rows; row++) {
        const value = this.value(this.columns.get(number), row);
        if (typeof value === "number" && value > 0) { low = Math.min(low, value); high = Math.max(high, value); }
      }
    }
    if (low > high) { low = high = 1; }
    this.least.textContent = figure(low); this.most.textContent = figure(high);
    const style = getComputedStyle(document.documentElement);
    const ramp = [0, 1, 2, 3, 4].map((i) => rgb(style.getPropertyValue(`--heat-${i}`)));
    const bad = rgb(style.getPropertyValue("--nan"));
    this.canvas.width = numbers.length; this.canvas.height = rows;
    this.canvas.style.height = `${rows * height}px`;
    const context = this.canvas.getContext("2d"), image = context.createImageData(numbers.length, rows);
    numbers.forEach((number, x) => {
      const column = this.columns.get(number);
      for (let row = 0; row < rows; row++) {
        const value = this.value(column, row);
        const color = typeof value === "string" ? bad : typeof value === "number" ? shade(ramp, value, low, high) : null;
        if (color) image.data.set([...color, 255], 4 * (row * numbers.length + x));
      }
    });
    context.putImageData(image, 0, 0);
    this.nameRows(rows, height);
    const first = numbers[0] * this.width, last = (numbers[numbers.length - 1] + 1) * this.width - 1;
    this.nameSteps(first, last);
    const metric = ["largest output", "rms of the output", "gain"][this.metric];
    this.canvas.setAttribute("aria-label", `Heat map of the ${metric} of ${rows} modules, steps ${first} to ${last}, from ${figure(low)} to ${figure(high)}. Arrow keys read a cell.`);
    this.canvas.dataset.drawn = "yes";
    this.drawMarks();
    this.tell();
  }

  // Columns are what was sampled, which is not evenly: the steps in between have their own places.
  nameSteps(first, last) {
    this.steps.replaceChildren();
    const count = this.numbers.length, labels = Math.min(this.canvas.clientWidth > 480 ? 5 : 3, Math.floor((count + 1) / 2));
    htmlNode("span", "", `step ${first.toLocaleString("en")}`, this.steps);
    for (let i = 1; i < labels - 1; i++) {
      const column = Math.floor((i * count) / (labels - 1));
      const label = htmlNode("span", "between", (this.numbers[column] * this.width).toLocaleString("en"), this.steps);
      label.style.left = `${(100 * (column + 0.5)) / count}%`;
    }
    htmlNode("span", "", `step ${last.toLocaleString("en")}`, this.steps);
  }

  // What was done about the run, and forecasts, as lines across all modules, where the plots above have them.
  drawMarks() {
    this.marks.replaceChildren();
    this.marked = new Map();
    if (!this.numbers || !this.numbers.length) return;
    const count = this.numbers.length;
    this.marks.setAttribute("viewBox", `0 0 ${count} 1`);
    for (const [action, series] of Plots.group("run").actions) {
      if (!FULL_HEIGHT_ACTIONS.includes(action)) continue;
      let d = "";
      for (const bucket of series.list()) {
        const column = this.columnOf(bucket.first);
        if (!this.marked.has(column)) this.marked.set(column, new Set());
        if (!this.marked.get(column).has(action)) d += `M${column + 0.5} 0v1`;
        this.marked.get(column).add(action);
      }
      for (const name of d ? ["under", `a-${action}`] : []) {
        svgNode("path", { class: name, d, fill: "none", "vector-effect": "non-scaling-stroke", "data-action": action }, this.marks);
      }
    }
  }

  columnOf(step) {
    const wanted = Math.floor(step / this.width), found = this.numbers.findIndex((number) => number >= wanted);
    return found < 0 ? this.numbers.length - 1 : found;
  }

  nameRows(rows, height) {
    const every = height >= 12 ? 1 : Math.ceil(12 / height);
    const names = this.modules.join("\n");
    if (this.named !== names) {
      this.named = names;
      this.rows.replaceChildren();
      for (let row = 0; row < rows && (rows - row) * height >= 11; row += every) {  // 11 px: less would cut a name
        const name = htmlNode("div", "", undefined, this.rows);
        htmlNode("bdi", "", this.modules[row], name);
        name.title = this.modules[row];
        name.style.height = name.style.lineHeight = `${height * Math.min(every, rows - row)}px`;
      }
    }
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    this.at = [Math.floor(((event.clientX - box.left) / box.width) * this.numbers.length), Math.floor(((event.clientY - box.top) / box.height) * this.modules.length)];
    this.tell();
  }

  key(event) {
    const move = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (!move || !this.numbers) return;
    const [x, y] = this.at || [this.numbers.length - 1, 0];
    this.at = [Math.min(Math.max(x + move[0], 0), this.numbers.length - 1), Math.min(Math.max(y + move[1], 0), this.modules.length - 1)];
    this.tell();
    event.preventDefault();
  }

  tell() {
    const [x, y] = this.at || [];
    const number = this.at && this.numbers[x];
    if (number === undefined || number === null || !this.modules[y]) { this.read.textContent = ""; return; }
    const step = this.width > 1 ? `steps ${number * this.width}–${(number + 1) * this.width - 1}` : `step ${number}`;
    const done = [...((this.marked && this.marked.get(x)) || [])].map((action) => `, ${action}`).join("");
    this.read.textContent = `${this.modules[y]}, ${step}: ${figure(this.value(this.columns.get(number), y))}${done}`;
  }
}

function rgb(color) {
  const hex = color.trim().replace("#", "");
  return [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

function shade(ramp, value, low, high) {
  if (value <= 0) return ramp[0];
  const share = high > low ? Math.log(value / low) / Math.log(high / low) : 0.5;
  const at = Math.min(share * (ramp.length - 1), ramp.length - 1.000001), i = Math.max(0, Math.floor(at));
  return ramp[i].map((part, k) => Math.round(part + (ramp[i + 1][k] - part) * (at - i)));
}

const Heat = {
  map: null,
  apply(patch) {
    if (!patch) return;
    const place = document.getElementById("heat");
    if (!place) return;
    document.getElementById("modules").hidden = false;
    if (!this.map) this.map = new HeatMap(place);
    this.map.apply(patch);
  },
};
