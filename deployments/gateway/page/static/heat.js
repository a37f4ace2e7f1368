// Time per phase over ranks: a block per phase, a column per machine, its ranks below one another. Colour is the ratio
// to the phase's median; ranks that stand out are outlined and listed.

import { colour, h, part, seconds, table } from "./dom.js";
import { Grid } from "./grid.js";

const LISTED = 10;

export class HeatMap {
  constructor(parent, choose) {
    this.choice = choose;
    this.note = h("div", {});
    parent.append(this.note);
    this.grid = new Grid(parent, "Mean time per phase over ranks", { maxHeight: 520, choose: (id) => choose(id % this.view.world_size) });
    this.list = part(parent, "outliers");
    this.chosen = null;
  }

  set(view) {
    this.view = view;
    const { world_size: size, per_machine: per, phases, times, median, machines } = view;
    const told = times.some((row) => row.some((value) => value !== null));
    this.note.replaceChildren(told ? scale() : h("p", { class: "soft" }, "No step was timed yet. Name the parts of a step with session.phase(\"forward\") to see them here."));
    this.grid.box.hidden = !told;
    const ramp = makeRamp();
    const outliers = view.outliers.map((ranks) => new Set(ranks));
    const [strong, text] = [colour("outlier"), colour("text")];
    this.grid.set({
      blocks: phases.map((name, at) => ({ label: name, columns: Math.ceil(size / per), rows: per, cell: (column, row) => at * size + column * per + row })),
      fill: (id) => ramp(times[Math.floor(id / size)][id % size], median[Math.floor(id / size)]),
      mark: (id) => (id % size === this.chosen ? text : outliers[Math.floor(id / size)].has(id % size) ? strong : null),
      tell: (id) => {
        const [at, rank] = [Math.floor(id / size), id % size];
        return `${phases[at]}: rank ${rank} on ${machines[Math.floor(rank / per)] ?? "?"} ${ratio(times[at][rank], median[at])}${outliers[at].has(rank) ? ", stands out" : ""}`;
      },
    });
    this.list.draw([view.outliers, this.#worst()], () => this.#table());
  }

  #worst() {
    const { phases, times, median, outliers } = this.view;
    return phases.flatMap((name, at) => outliers[at].slice(0, LISTED).map((rank) => ({ name, rank, value: times[at][rank], median: median[at] })))
      .sort((a, b) => b.value / (b.median || 1) - a.value / (a.median || 1)).slice(0, LISTED);
  }

  #table() {
    const { machines, per_machine: per, outliers } = this.view;
    const all = outliers.reduce((sum, ranks) => sum + ranks.length, 0);
    if (!all) return h("p", { class: "soft" }, "No rank stands out.");
    return [h("p", { class: "soft" }, `${all} ${all === 1 ? "outlier" : "outliers"}${all > LISTED ? `, the first ${LISTED}` : ""}`),
      table("Ranks that stand out", ["Phase", "#Rank", "Machine", "#Takes", "#Median", "#Ratio"], this.#worst().map((row) => [
        row.name, h("button", { type: "button", class: "rank", "data-key": `${row.name} ${row.rank}`, onclick: () => this.choice(row.rank) }, row.rank),
        machines[Math.floor(row.rank / per)] ?? "", seconds(row.value), seconds(row.median), row.median ? `${(row.value / row.median).toFixed(2)}×` : ""]))];
  }

  choose(rank) {
    this.chosen = rank;
    if (this.view) this.set(this.view);
  }
}

const ratio = (value, median) => (value === null ? "no figure" : `${seconds(value)}${median ? `, ${(value / median).toFixed(2)}× the median` : ""}`);

function makeRamp() {
  const [cool, even, warm, hot, none] = ["cool", "even", "warm", "hot", "none"].map((name) => colour(`heat-${name}`));
  const known = new Map();
  return (value, median) => {
    if (value === null) return none;
    const step = Math.max(0, Math.min(20, Math.round(((median ? value / median : 1) - 0.5) * 13.34)));
    if (!known.has(step)) known.set(step, at(step / 13.34 + 0.5));
    return known.get(step);
  };
  function at(r) {
    if (r <= 1) return mix(cool, even, (r - 0.5) / 0.5);
    return r <= 1.5 ? mix(even, warm, (r - 1) / 0.5) : mix(warm, hot, (r - 1.5) / 0.5);
  }
}

function mix(from, to, part) {
  const [a, b] = [from, to].map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  return `rgb(${a.map((value, at) => Math.round(value + (b[at] - value) * Math.max(0, Math.min(1, part)))).join(" ")})`;
}

const scale = () => h("ul", { class: "legend" },
  [["heat-cool", "half the median"], ["heat-even", "median"], ["heat-warm", "1.5×"], ["heat-hot", "2× and more"], ["heat-outlier", "stands out"]]
    .map(([name, text]) => h("li", {}, h("span", { class: `swatch ${name}` }), text)));
