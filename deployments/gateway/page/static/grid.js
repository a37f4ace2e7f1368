// Thousands of cells on one canvas: blocks of columns that wrap, with pointer, keyboard and words for each cell.

import { h, colour } from "./dom.js";

const GAP = 1;
const LABEL_PX = 62;
const SIZES = [22, 18, 15, 12, 10, 8, 7, 6, 5, 4, 3];
const LINE_GAP = 6;
const BLOCK_GAP = 18;
const EDGE = 2;

// blocks: [{label, columns, rows, cell(column, row) -> id}]; fill(id) -> colour; mark(id) -> outline colour or null;
// The words of a cell, by its id; choose(id): the cell was clicked or Enter pressed.
export class Grid {
  constructor(parent, label, { maxHeight = 420, choose = () => {} } = {}) {
    this.maxHeight = maxHeight;
    this.choose = choose;
    this.canvas = h("canvas", { tabindex: "0", role: "application", "aria-roledescription": "map of cells", "aria-label": `${label}. Arrow keys move, Enter chooses.` });
    this.said = h("p", { class: "sr", "aria-live": "polite" });
    this.box = h("div", { class: "grid" }, this.canvas, this.said);
    parent.append(this.box);
    this.blocks = [];
    this.at = null;
    this.focused = false;
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => this.#tip(null));
    this.canvas.addEventListener("click", (event) => this.#click(event));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    this.canvas.addEventListener("focus", () => this.#focus(true));
    this.canvas.addEventListener("blur", () => this.#focus(false));
    new ResizeObserver(() => this.#resized()).observe(this.box);
  }

  set({ blocks, fill, mark = () => null, tell }) {
    Object.assign(this, { blocks, fill, mark, tell });
    this.draw();
  }

  draw() {
    const width = this.box.clientWidth;
    if (!width || !this.blocks.length) return;
    this.#layout(width);
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.canvas.style.height = `${this.height}px`;
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const byColour = new Map();
    const marked = [];
    for (const place of this.places) {
      const paint = this.fill(place.id);
      if (!byColour.has(paint)) byColour.set(paint, []);
      byColour.get(paint).push(place);
      const outline = this.mark(place.id);
      if (outline) marked.push([place, outline]);
    }
    const size = this.size - GAP;
    for (const [paint, places] of byColour) {
      context.fillStyle = paint;
      for (const { x, y } of places) context.fillRect(x, y, size, size);
    }
    for (const [{ x, y }, outline] of marked) this.#outline(context, x, y, outline, this.size > 6 ? 2 : 1);
    this.#labels(context);
    if (this.focused && this.at !== null && this.places[this.at]) {
      const { x, y } = this.places[this.at];
      this.#outline(context, x, y, colour("focus"), 3);
    }
  }

  // Narrow blocks lie beside one another, wide ones wrap their columns; cells are as large as the height allows.
  #layout(width) {
    this.left = this.blocks.some((block) => block.label) ? LABEL_PX : EDGE;
    const widest = Math.max(...this.blocks.map((block) => block.columns));
    const fit = (size) => this.#fit(width, size, widest);
    this.size = SIZES.find((size) => fit(size).height <= this.maxHeight) ?? SIZES.at(-1);
    const { across, beside } = fit(this.size);
    this.places = [];
    this.lines = [];
    let y = 2;
    let deepest = y;
    this.blocks.forEach((block, number) => {
      const left = (number % beside) * (width / beside) + this.left;
      if (number % beside === 0) y = deepest;
      let top = y;
      for (let begin = 0; begin < block.columns; begin += across) {
        const end = Math.min(block.columns, begin + across);
        const height = block.rows * this.size;
        this.lines.push({ x: left, y: top, height, columns: end - begin, label: begin === 0 ? block.label : "" });
        for (let column = begin; column < end; column++) {
          for (let row = 0; row < block.rows; row++) {
            const id = block.cell(column, row);
            if (id >= 0) this.places.push({ x: left + (column - begin) * this.size, y: top + row * this.size, id });
          }
        }
        top += height + (block.rows > 1 ? LINE_GAP : GAP);
      }
      deepest = Math.max(deepest, top + LINE_GAP);
    });
    this.height = Math.max(12, deepest - LINE_GAP);
    this.byPlace = new Map(this.places.map((place, at) => [`${place.x},${place.y}`, at]));
  }

  #fit(width, size, widest) {
    const beside = Math.max(1, Math.min(this.blocks.length, Math.floor(width / (this.left + widest * size + BLOCK_GAP))));
    const across = beside > 1 ? widest : Math.max(1, Math.floor((width - this.left) / size));
    let height = 2;
    for (let number = 0; number < this.blocks.length; number += beside) {
      height += Math.max(...this.blocks.slice(number, number + beside).map((block) =>
        Math.ceil(block.columns / across) * (block.rows * size + (block.rows > 1 ? LINE_GAP : GAP)) + LINE_GAP));
    }
    return { across, beside, height };
  }

  #labels(context) {
    context.fillStyle = colour("soft");
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "top";
    const below = new Map();
    for (const { x, y, label, height } of this.lines) {
      if (!label || y < (below.get(x) ?? -20) + 12) continue;
      context.fillText(label, x - this.left, y + Math.max(0, Math.min(height - 11, 3)), LABEL_PX - 6);
      below.set(x, y);
    }
  }

  #outline(context, x, y, paint, width) {
    context.strokeStyle = paint;
    context.lineWidth = width;
    const size = this.size - GAP;
    context.strokeRect(x - 0.5, y - 0.5, size + 1, size + 1);
  }

  #find(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    for (const line of this.lines ?? []) {
      const column = Math.floor((x - line.x) / this.size);
      if (y < line.y || y >= line.y + line.height || column < 0 || column >= line.columns) continue;
      return this.byPlace.get(`${line.x + column * this.size},${line.y + Math.floor((y - line.y) / this.size) * this.size}`);
    }
    return undefined;
  }

  #point(event) {
    const at = this.#find(event);
    this.#tip(at === undefined ? null : this.tell(this.places[at].id), event);
  }

  #click(event) {
    const at = this.#find(event);
    if (at === undefined) return;
    this.at = at;
    this.choose(this.places[at].id);
  }

  #key(event) {
    if (!this.places?.length) return;
    const here = this.places[this.at ?? 0];
    const steps = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
    let to = null;
    if (event.key in steps) to = this.at === null ? 0 : this.#near(here, steps[event.key]);
    else if (event.key === "Home") to = 0;
    else if (event.key === "End") to = this.places.length - 1;
    else if (event.key === "Enter" || event.key === " ") this.choose(here.id);
    else return;
    event.preventDefault();
    if (to !== null) this.at = to;
    this.said.textContent = this.tell(this.places[this.at ?? 0].id);
    this.draw();
  }

  // The next cell in a direction; across the gap between lines when there is none beside it.
  #near(here, [right, down]) {
    const beside = this.byPlace.get(`${here.x + right * this.size},${here.y + down * this.size}`);
    if (beside !== undefined) return beside;
    if (right) return Math.max(0, Math.min(this.places.length - 1, this.at + right));
    const column = this.places.map((place, at) => [place, at]).filter(([place]) => place.x === here.x && (place.y - here.y) * down > 0);
    return column.length ? column.reduce((best, next) => (Math.abs(next[0].y - here.y) < Math.abs(best[0].y - here.y) ? next : best))[1] : this.at;
  }

  #focus(on) {
    this.focused = on;
    this.at ??= 0;
    this.draw();
  }

  #resized() {
    if (this.box.clientWidth !== this.drawnWidth) {
      this.drawnWidth = this.box.clientWidth;
      this.draw();
    }
  }

  #tip(text, event) {
    showTip(text, event);
  }
}

export function showTip(text, event) {
  const tip = document.getElementById("tip");
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.min(event.clientY + 16, window.innerHeight - tip.offsetHeight - 8)}px`;
}
