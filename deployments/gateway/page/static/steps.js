// The newest steps of each machine's first rank over time, cut into their phases.

import { colour, h, seconds } from "./dom.js";
import { showTip } from "./grid.js";

const LABEL_PX = 62;
const KINDS = 8;
const STEPS = 6; // shown, of the median's length

export class StepTimeline {
  constructor(parent) {
    this.legend = h("div", {});
    this.canvas = h("canvas", { role: "img", "aria-label": "Steps by phase" });
    this.note = h("p", { class: "soft" });
    this.box = h("div", { class: "grid" }, this.canvas);
    parent.append(this.legend, this.box, this.note);
    new ResizeObserver(() => this.box.clientWidth !== this.width && this.#draw()).observe(this.box);
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => showTip(null));
  }

  set(view) {
    this.view = view;
    const names = view.phases;
    this.legend.replaceChildren(h("ul", { class: "legend" }, [...names.map((name, at) => [name, `kind-${at % KINDS}`]), ["rest of the step", "kind-rest"]]
      .map(([name, kind]) => h("li", {}, h("span", { class: `swatch ${kind}` }), name))));
    this.legend.hidden = !view.machines.length;
    this.note.textContent = this.#words();
    this.canvas.setAttribute("aria-label", `Steps by phase. ${this.note.textContent}`);
    this.#draw();
  }

  #words() {
    const rows = this.view.machines.filter((row) => row.steps.length);
    if (!rows.length) return "No step of this epoch was reported yet.";
    const last = rows.map((row) => ({ machine: row.machine, rank: row.rank, step: row.steps.at(-1) }));
    const slowest = last.reduce((most, row) => (row.step[2] > most.step[2] ? row : most));
    const left = this.view.left_out ? ` ${this.view.left_out} machines with faster steps are left out.` : "";
    return `Slowest newest step: ${slowest.machine} (rank ${slowest.rank}), step ${slowest.step[0]}, ${seconds(slowest.step[2])}.${left}`;
  }

  #draw() {
    const width = this.width = this.box.clientWidth;
    const rows = this.view?.machines.filter((row) => row.steps.length) ?? [];
    const high = rows.length > 24 ? 9 : 16;
    const height = rows.length ? rows.length * high + 20 : 0;
    this.canvas.hidden = !height;
    if (!width || !height) return;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const until = Math.max(...rows.map((row) => row.steps.at(-1)[1]));
    const lengths = rows.flatMap((row) => row.steps.map((step) => step[2])).sort((a, b) => a - b);
    const span = STEPS * (lengths[Math.floor(lengths.length / 2)] || 1);
    const x = (at) => LABEL_PX + ((at - until + span) / span) * (width - LABEL_PX - 2);
    const kinds = [...Array.from({ length: KINDS }, (_, at) => colour(`kind-${at}`)), colour("kind-rest")];
    this.boxes = [];
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    rows.forEach((row, at) => {
      const y = at * high;
      for (const [step, end, took, phases] of row.steps) {
        const left = x(end - took);
        const right = x(end);
        if (right < LABEL_PX) continue;
        context.fillStyle = kinds[KINDS];
        context.fillRect(Math.max(LABEL_PX, left), y + 1, right - Math.max(LABEL_PX, left) - 1, high - 2);
        let from = end - took;
        phases.forEach((spent, phase) => {
          const [a, b] = [Math.max(LABEL_PX, x(from)), Math.min(right - 1, x(from + spent))];
          context.fillStyle = kinds[phase % KINDS];
          if (b > a) context.fillRect(a, y + 1, b - a, high - 2);
          from += spent;
        });
        this.boxes.push({ left: Math.max(LABEL_PX, left), right, y, high, row, step, took, phases });
      }
      context.fillStyle = colour("soft");
      if (high > 10 || at % 2 === 0) context.fillText(row.machine, 0, y + high / 2, LABEL_PX - 6);
    });
    context.fillStyle = colour("soft");
    const marks = width > 600 ? 4 : 2;
    for (let mark = 0; mark <= marks; mark++) {
      const at = until - (span * (marks - mark)) / marks;
      context.textAlign = mark === 0 ? "left" : mark === marks ? "right" : "center";
      context.fillText(mark === marks ? "newest" : `−${seconds(until - at)}`, x(at), height - 8);
    }
    context.textAlign = "left";
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const found = this.boxes?.find((one) => x >= one.left && x < one.right && y >= one.y && y < one.y + one.high);
    showTip(found && [`${found.row.machine} (rank ${found.row.rank}), step ${found.step}: ${seconds(found.took)}`,
      ...found.phases.map((spent, at) => `${this.view.phases[at]} ${seconds(spent)}`)].join("\n"), event);
  }
}
