// Machines by state; one of them with what may be done to it; and the audit.

import { askEvict, askRelease } from "./dialogs.js";
import { done } from "./asks.js";
import { clock, colour, count, h, incidentLink, jobLink, part, seconds, state, table, words } from "./dom.js";
import { Grid } from "./grid.js";
import { incidentsOf } from "./incidents.js";

const STATES = ["active", "standby", "provisioning", "draining", "cordoned", "gone"];

export class MachineGrid {
  constructor(parent, choose, maxHeight = 300) {
    this.grid = new Grid(parent, "Machines by state", { maxHeight, choose: (at) => choose(this.machines.name[at]) });
  }

  set(machines, chosen = null) {
    Object.assign(this, { machines, chosen });
    const paint = Object.fromEntries(STATES.map((name) => [name, colour(`machine-${name}`)]));
    const outline = colour("text");
    this.grid.set({
      blocks: [{ label: "", columns: machines.name.length, rows: 1, cell: (column) => column }],
      fill: (at) => paint[machines.state[at]] ?? colour("soft"),
      mark: (at) => (machines.name[at] === chosen ? outline : null),
      tell: (at) => `${machines.name[at]}: ${machines.state[at]}${machines.job[at] ? `, job ${machines.job[at]}` : ""}${machines.role[at] ? `, role ${machines.role[at]}` : ""}${machines.reason[at] ? `, ${machines.reason[at]}` : ""}`,
    });
  }
}

export function summary(machines, pool) {
  const counts = STATES.map((name) => [name, machines.state.filter((one) => one === name).length]).filter(([, number]) => number);
  return h("div", {},
    h("ul", { class: "legend" }, counts.map(([name, number]) => h("li", {}, h("span", { class: `swatch machine-${name}` }), `${name} `, h("b", {}, count(number))))),
    pool ? h("p", { class: "soft" }, poolWords(pool)) : null);
}

function poolWords(pool) {
  const coming = pool.provisioning ? `, ${pool.provisioning} on their way` : "";
  if (!pool.sized) return `Standby pool: ${pool.standbys}${coming}. No size is set yet: a schedule sets it every night from this site's failures; \`holdfast pool\` shows what it would be, a run of the deployment resize-standby-pool sets it now.`;
  return `Standby pool: ${pool.standbys} of ${pool.target} wanted${coming}${pool.reason ? ` (${pool.reason})` : ""}`;
}

export function machinesView(main, chosen = null) {
  main.append(h("h1", {}, "Machines"));
  const counts = part(main, "counts");
  const map = part(main, "map");
  const grid = new MachineGrid(map.body, (name) => (location.hash = `#/machines/${encodeURIComponent(name)}`));
  const one = chosen === null ? null : part(main, "one", `Machine ${chosen}`);
  const out = part(main, "out", "Out of service");
  const all = h("details", {}, h("summary", {}, "All machines as a table"));
  main.append(all);
  const list = part(all, "list");
  const audit = part(main, "audit", "Manual actions");
  return {
    title: chosen ?? "Machines",
    sources: [
      {
        path: "/v1/page/overview",
        every: () => 2000,
        draw({ machines, pool }) {
          const rows = machines.name.map((name, at) => Object.fromEntries(Object.entries(machines).map(([key, values]) => [key, values[at]])));
          counts.draw([machines.state, pool], () => summary(machines, pool));
          grid.set(machines, chosen);
          one?.draw(rows.find((row) => row.name === chosen) ?? null, oneMachine);
          out.draw(rows.filter((row) => ["cordoned", "draining", "gone"].includes(row.state)), outTable);
          if (all.open) list.draw(rows, machineTable);
        },
      },
      { path: "/v1/page/by-hand", every: () => 3000, draw: ({ by_hand: acts }) => audit.draw(acts, actTable) },
    ],
  };
}

const OUT = ["cordoned", "gone"];

const seen = (machine) => (machine.late_s ? h("span", { class: "restore failed" }, `late: silent for ${seconds(machine.late_s)}`) : machine.seen_at ? clock(machine.seen_at) : "never");

function oneMachine(machine) {
  if (!machine) return h("p", {}, "There is no such machine.");
  const out = OUT.includes(machine.state);
  return [
    h("dl", { class: "facts" }, fact("State", state(machine.state)), machine.job ? fact("Job", jobLink(machine.job)) : null,
      machine.role ? fact("Role", machine.role) : null,
      machine.reason ? fact("Because", machine.reason) : null, machine.scope ? fact("Kept from", machine.scope === "cluster" ? "every job" : "its job") : null,
      fact("Agent", machine.address || "none"), fact("Seen", seen(machine))),
    h("p", {}, h("a", { href: incidentsOf({ machine: machine.name }), "data-key": "its incidents" }, "Incidents that name it")),
    h("div", { class: "buttons" }, out ? releaseButton(machine) : evictButton(machine)),
  ];
}

export const fact = (name, value) => h("div", { class: "pair" }, h("dt", {}, name), h("dd", {}, value));

const evictButton = (machine) =>
  h("button", { type: "button", class: "danger", "data-key": `evict ${machine.name}`, onclick: async () => (await askEvict(machine.name, machine.job, machine.role)) && done() }, "Evict…");

const releaseButton = (machine) =>
  h("button", { type: "button", "data-key": `release ${machine.name}`, onclick: async () => (await askRelease(machine.name, machine.reason)) && done() }, "Release…");

function outTable(rows) {
  return table("Machines out of service", ["Machine", "State", "Because", "Kept from", ""],
    rows.map((row) => [machineLink(row.name), state(row.state), row.reason ?? "", row.scope === "job" ? "its job" : row.scope ? "every job" : "", OUT.includes(row.state) ? releaseButton(row) : ""]), "none");
}

const machineLink = (name) => h("a", { href: `#/machines/${encodeURIComponent(name)}`, "data-key": `m ${name}` }, name);

function machineTable(rows) {
  return table("All machines", ["Machine", "State", "Job", "Agent", "Seen"],
    rows.map((row) => [machineLink(row.name), state(row.state), row.job ? [jobLink(row.job), row.role ? ` (${row.role})` : ""] : "", row.address, seen(row)]), "none");
}

const LINKS = { evict: machineLink, release: machineLink, approve: incidentLink, refuse: incidentLink, submit: jobLink, pause: jobLink, resume: jobLink, stop: jobLink, update: jobLink };
const actTarget = ({ act, target }) => (LINKS[act] ?? String)(target);

export function actTable(acts) {
  return table("Manual actions of people", ["When", "Who", "From", "What", "Why", "Outcome"],
    acts.map((act) => [clock(act.at), `${act.by} (${act.via === "page" ? "page" : "command line or API"})`, act.source, [`${act.act} `, actTarget(act)], act.reason,
      [act.state === "done" ? "" : `${words(act.state === "intent" ? "under way" : act.state)}: `, act.outcome]]), "nothing yet");
}
