// Steps and ETTR over a job's life, with its incidents as bands. uPlot is a global of its own script.

import { colour, h } from "./dom.js";

const HEIGHT = 230;

export class Timeline {
  constructor(parent) {
    this.box = h("div", { class: "chart", role: "img", "aria-label": "Steps over time" });
    parent.append(this.box);
    new ResizeObserver(() => this.plot?.setSize({ width: this.box.clientWidth, height: HEIGHT })).observe(this.box);
  }

  set(view) {
    this.view = view;
    this.box.setAttribute("aria-label", `Steps over time, now ${view.step}; ETTR ${view.ettr_note || `${(100 * view.ettr).toFixed(1)} %`}; ${view.incidents.length} incidents, listed below.`);
    const steps = view.steps;
    const curve = view.ettr_curve;
    if (!steps.length && !curve.length) {
      this.plot?.destroy();
      this.plot = null;
      this.box.replaceChildren(h("p", { class: "soft" }, "no step yet"));
      return;
    }
    const data = uPlot.join(
      [[steps.map((point) => point[0]), steps.map((point) => point[1])],
        [curve.map((point) => point[0]), curve.map((point) => 100 * point[1]), curve.map((point) => 100 * point[2])]],
      [[0, 2], [0, 1, 1]]);
    const theme = [colour("text"), colour("step"), colour("surface")].join();
    if (this.plot && this.theme === theme) {
      this.plot.setData(data);
      return;
    }
    this.theme = theme;
    this.plot?.destroy();
    this.box.replaceChildren();
    this.plot = new uPlot(this.#options(), data, this.box);
  }

  #options() {
    const line = colour("line");
    const text = colour("soft");
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui" };
    return {
      width: this.box.clientWidth || 600,
      height: HEIGHT,
      cursor: { points: { size: 6 }, drag: { x: true, y: false } },
      scales: { x: { time: true }, ettr: { range: [0, 100] } },
      series: [
        {},
        { label: "Step", scale: "y", stroke: colour("step"), width: 2, spanGaps: false, points: { show: false } },
        { label: "ETTR so far %", scale: "ettr", stroke: colour("ettr"), width: 1.5, spanGaps: true, points: { show: false }, value: (_, value) => value?.toFixed(1) ?? "" },
        { label: "of each interval %", scale: "ettr", stroke: colour("interval"), width: 1, dash: [3, 3], spanGaps: true, points: { show: false }, value: (_, value) => value?.toFixed(1) ?? "" },
      ],
      axes: [
        axis,
        { ...axis, size: 56, values: (_, values) => values.map((value) => (value >= 1e6 ? `${value / 1e6}M` : value >= 1e4 ? `${value / 1e3}k` : value)) },
        { ...axis, scale: "ettr", side: 1, size: 52, grid: { show: false }, values: (_, values) => values.map((value) => `${value}%`) },
      ],
      hooks: { drawClear: [(plot) => this.#bands(plot)] },
    };
  }

  #bands(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const incident of this.view.incidents) {
      const left = plot.valToPos(incident.detected_at, "x", true);
      const right = plot.valToPos(incident.recovered_at ?? incident.closed_at ?? this.view.until, "x", true);
      ctx.fillStyle = incident.state === "needs_human" || incident.state === "open" ? colour("band-open") : colour("band");
      ctx.fillRect(left, bbox.top, Math.max(2 * devicePixelRatio, right - left), bbox.height);
    }
    ctx.restore();
  }
}
