// The job in TP x PP x DP space: a block per pipeline stage, a column per data-parallel index, tensor ranks below one
// another. One rank in full: its groups, its peer, its last error and its stack.

import { get } from "./api.js";
import { clock, colour, count, h, incidentLink, seconds, state } from "./dom.js";
import { Grid } from "./grid.js";
import { fact } from "./machines.js";

const ORDER = ["running", "starting", "paused", "stopped", "failed", "silent", "done"];

export class RankMap {
  constructor(parent, choose) {
    this.legend = h("div", {});
    const input = h("input", { type: "number", min: "0", id: "go-rank", inputmode: "numeric" });
    const go = h("form", { class: "go", onsubmit: (event) => { event.preventDefault(); if (input.value !== "") choose(Number(input.value)); } },
      h("label", { for: "go-rank" }, "Rank"), input, h("button", { type: "submit" }, "Show"));
    parent.append(h("div", { class: "row" }, this.legend, go));
    this.input = input;
    this.grid = new Grid(parent, "Ranks in TP, PP, DP space", { choose });
    this.groups = new Map();
  }

  set(view) {
    this.view = view;
    const { tp, pp, dp, states } = view;
    this.input.max = view.world_size - 1;
    const newest = view.step.reduce((most, step) => Math.max(most, step ?? 0), 0);
    const counts = new Map();
    for (const one of view.state) counts.set(one, (counts.get(one) ?? 0) + 1);
    this.legend.replaceChildren(h("ul", { class: "legend" }, ORDER.filter((name) => counts.get(states.indexOf(name)))
      .map((name) => h("li", {}, h("span", { class: `swatch rank-${name}` }), `${name} `, h("b", {}, count(counts.get(states.indexOf(name))))))));
    const paint = states.map((name) => colour(`rank-${name}`));
    const failed = colour("rank-failed");
    this.grid.set({
      blocks: Array.from({ length: pp }, (_, stage) => ({ label: pp > 1 ? `PP ${stage}` : "", columns: dp, rows: tp, cell: (column, row) => (stage * dp + column) * tp + row })),
      fill: (rank) => paint[view.state[rank]],
      mark: (rank) => this.groups.get(rank) ?? (view.errors[rank] ? failed : null),
      tell: (rank) => this.#words(rank, newest),
    });
  }

  #words(rank, newest) {
    const { tp, dp, per_machine: per, machines, states } = this.view;
    const place = Math.floor(rank / tp);
    const behind = newest - (this.view.step[rank] ?? newest);
    return [`rank ${rank} on ${machines[Math.floor(rank / per)] ?? "no machine"}: ${states[this.view.state[rank]]}`,
      `TP ${rank % tp}, PP ${Math.floor(place / dp)}, DP ${place % dp}`,
      this.view.step[rank] === null ? "" : `step ${this.view.step[rank]}${behind > 1 ? ` (${behind} behind)` : ""}`,
      this.view.errors[rank] ?? ""].filter(Boolean).join("\n");
  }

  choose(rank) {
    this.input.value = rank;
  }

  highlight(detail) {
    this.groups = new Map();
    for (const kind of ["dp", "pp", "tp"]) {
      const paint = colour(`group-${kind}`);
      for (const group of detail.groups) if (group.kind === kind) for (const rank of group.ranks) this.groups.set(rank, paint);
    }
    this.groups.set(detail.rank, colour("text"));
    if (this.view) this.set(this.view);
  }
}

export function rankPanel(job, view, choose) {
  const now = view.now;
  const { tp, pp, dp } = view.place;
  return [
    h("h2", {}, `Rank ${view.rank}`, h("span", { class: "soft" }, ` TP ${tp}, PP ${pp}, DP ${dp}`)),
    h("dl", { class: "facts" },
      fact("State", [state(view.state), now?.activity ? ` in ${now.activity}` : ""]),
      fact("Machine", view.machine ? h("a", { href: `#/machines/${encodeURIComponent(view.machine)}`, "data-key": "machine" }, view.machine) : "none"),
      now ? [fact("Process", `${now.pid} (${now.process_state || "gone"})`), fact("Step", `${count(now.step)}, ${seconds(now.step_s)} each`)] : null,
      now?.loss !== null && now?.loss !== undefined ? fact("Loss", now.loss.toPrecision(5)) : null,
      fact("Its copy is kept by", view.peer ?? "no machine"), view.keeps_copy_of ? fact("Its machine keeps the copy of", view.keeps_copy_of) : null,
      view.replicated_step !== null ? fact("Newest copied step", count(view.replicated_step)) : null),
    now && Object.keys(now.phases).length ? h("p", { class: "soft" }, "Mean time per step: ", Object.entries(now.phases).map(([name, value]) => `${name} ${seconds(value)}`).join(", ")) : null,
    h("h3", {}, "Groups"),
    view.groups.length ? h("ul", { class: "groups" }, view.groups.map((group) => groupLine(group, view.rank, choose))) : h("p", { class: "soft" }, "none of more than one rank"),
    h("h3", {}, "Last error"),
    view.error ? errorBox(view.error) : h("p", { class: "soft" }, "none since the job was submitted"),
    h("h3", {}, "Stack"),
    stackBox(job, view.rank),
  ];
}

const SHOWN = 24;

function groupLine(group, own, choose) {
  const at = group.ranks.indexOf(own);
  const from = Math.max(0, Math.min(at - SHOWN / 2, group.ranks.length - SHOWN));
  const near = group.ranks.slice(from, from + SHOWN);
  return h("li", {}, h("span", { class: `swatch group-${group.kind}` }), h("b", {}, `${group.kind.toUpperCase()} ${group.index}`), ` ${count(group.ranks.length)} ranks: `,
    from > 0 ? "… " : "",
    near.map((rank) => [rank === own ? h("b", {}, rank) : h("button", { type: "button", class: "rank", "data-key": `${group.kind} ${rank}`, onclick: () => choose(rank) }, rank), " "]),
    from + SHOWN < group.ranks.length ? "…" : "");
}

function errorBox(error) {
  return h("div", { class: "signal" }, h("p", {}, error.text, " ", h("span", { class: "soft" }, incidentLink(error.incident), ` epoch ${error.epoch ?? "?"}, `, clock(error.at))),
    error.traceback ? h("details", {}, h("summary", {}, "Traceback"), h("pre", { tabindex: "0" }, error.traceback)) : null,
    error.log_tail ? h("details", {}, h("summary", {}, "End of its log"), h("pre", { tabindex: "0" }, error.log_tail)) : null);
}

const stacks = new Map(); // of the rank looked at: what was taken stays on the page while its panel is drawn again

function stackBox(job, rank) {
  const key = `${job} ${rank}`;
  const out = h("div", { "aria-live": "polite" }, stacks.get(key) ?? null);
  const take = async () => {
    button.disabled = true;
    out.replaceChildren("asking the agent…");
    try {
      const { data } = await get(`/v1/page/jobs/${encodeURIComponent(job)}/ranks/${rank}/stack`);
      stacks.clear();
      stacks.set(key, h("div", {}, data.stacks.length ? data.stacks.map(stackOf) : "the rank has no process"));
      out.replaceChildren(stacks.get(key));
    } catch (error) {
      out.replaceChildren(h("p", { class: "error" }, error.message));
    }
    button.disabled = false;
  };
  const button = h("button", { type: "button", "data-key": "stack", onclick: take }, "Take its stack now");
  return h("div", {}, button, out);
}

function stackOf(dump) {
  const lines = dump.frames.map((frame) => `${frame.function}  ${frame.file}:${frame.line}`).join("\n");
  return h("details", { open: dump.thread === "MainThread" && !dump.child }, h("summary", {}, `${dump.child ? `child ${dump.pid} ` : ""}${dump.thread}${dump.process_state ? ` (${dump.process_state})` : ""}`),
    h("pre", { tabindex: "0" }, dump.error || lines || "no Python frames"));
}
