// One job: where it stands, its life as a chart, its ranks in their parallel groups, and where the time of a step goes.

import { asksBox } from "./asks.js";
import { Timeline } from "./chart.js";
import { clock, count, h, lostStack, part, percent, seconds, state, table } from "./dom.js";
import { incidentTable, incidentsOf } from "./incidents.js";
import { fact } from "./machines.js";
import { RankMap, rankPanel } from "./ranks.js";
import { HeatMap } from "./heat.js";
import { rolesPart } from "./roles.js";
import { StepTimeline } from "./steps.js";

const SLOW = 1000; // ranks from which on the maps are asked for less often

export function jobView(main, name) {
  const base = `/v1/page/jobs/${encodeURIComponent(name)}`;
  main.append(h("h1", {}, `Job ${name}`));
  const asks = part(main, "asks");
  const facts = part(main, "facts-part");
  const life = part(main, "life", "Steps, ETTR and incidents");
  const chart = new Timeline(life.body);
  const time = part(main, "time", "Where the time went");
  const map = part(main, "ranks", "Ranks: TP × PP × DP");
  let size = 0;
  let chosen = null;
  const panel = part(main, "rank");
  panel.section.hidden = true;
  const choose = (rank) => {
    chosen = rank;
    ranks.choose(rank);
    heat.choose(rank);
    document.dispatchEvent(new Event("holdfast:done"));
  };
  const ranks = new RankMap(map.body, choose);
  const warm = part(main, "heat", "Time per phase over ranks");
  const heat = new HeatMap(warm.body, choose);
  const line = part(main, "steps", "Steps by phase");
  const steps = new StepTimeline(line.body);
  const roles = part(main, "roles", "Roles");
  roles.section.hidden = true;
  const incidents = part(main, "incidents", "Incidents");
  const epochs = part(main, "epochs", "Epochs");
  return {
    title: name,
    sources: [
      {
        path: base,
        every: () => 2000,
        draw(view) {
          asks.draw(view.ask ? [view.ask] : [], asksBox);
          facts.draw(jobFacts(view), head);
          chart.set(view);
          roles.section.hidden = !view.roles.length;
          roles.draw(view.roles, rolesPart);
          const spent = view.scaled_to_zero_s ? { ...view.lost_by_phase_s, scaled_to_zero: view.scaled_to_zero_s } : view.lost_by_phase_s;
          time.draw([view.productive_s, spent], () => lostStack(view.productive_s, spent, "Wall-clock time"));
          incidents.draw(view.incidents, (rows) => [incidentTable([...rows].reverse()), h("p", {}, h("a", { href: incidentsOf({ job: name }), "data-key": "all incidents" }, "All incidents of jobs with this name"))]);
          epochs.draw(view.epochs, epochTable);
        },
      },
      {
        path: `${base}/ranks`,
        every: () => (size > SLOW ? 5000 : 2000),
        draw(view) {
          const begun = performance.now();
          size = view.world_size;
          ranks.set(view);
          heat.set(view);
          performance.measure("holdfast ranks drawn", { start: begun });
        },
      },
      { path: `${base}/steps`, every: () => 2000, draw: (view) => steps.set(view) },
      {
        path: () => (chosen === null ? null : `${base}/ranks/${chosen}`),
        every: () => 2000,
        draw(view) {
          panel.section.hidden = false;
          ranks.highlight(view);
          panel.draw(view, () => rankPanel(name, view, choose));
        },
      },
    ],
  };
}

const jobFacts = (view) => ({ ...view, steps: null, ettr_curve: null, ettr_note: null, incidents: null, epochs: null, roles: null, until: null, lost: null, scaled_to_zero_s: null, wall_s: Math.round(view.wall_s) });

function head(view) {
  return h("dl", { class: "facts big" },
    fact("State", [state(view.state), view.mode === "act" ? "" : ` (mode ${view.mode})`]), fact("Step", count(view.step)), fact("ETTR", view.ettr_note || percent(view.ettr)),
    fact(`ETTR, last ${seconds(view.window_s)}`, percent(view.ettr_window)), fact("Longest time without a step", seconds(view.worst_gap_s)),
    fact("Restarts", view.restarts), fact("Ranks", `${count(view.world_size)} on ${count(view.machines)} machine${view.machines === 1 ? "" : "s"}`), fact("TP × PP × DP", `${view.tp} × ${view.pp} × ${view.dp}`),
    fact("Epoch", view.epoch), fact("Code", view.code_version),
    view.skipped_steps.length ? fact("Data skipped", `of step ${view.skipped_steps.join(", ")}`) : null,
    ...view.kept_signals.map((signal) => fact("After the hold", h("span", { class: "restore failed" }, `${signal}: acted on when the hold ends`))),
    view.state === "running" ? fact("Restore", h("span", { class: `restore ${view.restore.outcome}` }, view.restore.told)) : null,
    ...(view.state === "running" ? view.unsaved : []).map((each) => fact("Saves", h("span", { class: "restore failed" }, `${each.told}, since `, clock(each.since)))));
}

function epochTable(epochs) {
  return table("Epochs", ["#Epoch", "Began", "#From step", "#To step", "Why", "Code"],
    [...epochs].reverse().map((row) => [row.epoch, clock(row.opened_at), count(row.start_step), count(row.last_step), h("span", { class: "long" }, row.reason), row.code_version]), "none yet");
}
