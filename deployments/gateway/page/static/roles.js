// The roles of a job: how many of their replicas run, and where each is.

import { count, h, percent, state, table } from "./dom.js";
import { fact } from "./machines.js";

export function rolesPart(roles) {
  return roles.flatMap((role) => [
    h("dl", { class: "facts" },
      fact("Role", `${role.name} (${role.kind})`), fact("Running", `${count(role.running)} of ${count(role.replicas)}`),
      role.own_machines?.wanted ? fact("Own machines", ownMachines(role.own_machines)) : null,
      role.share == null ? null : fact("Ran, of the time wanted", percent(role.share)), fact("Restarts", count(role.restarts)), waiting(role) ? fact("Waits", waiting(role)) : null),
    table(`Replicas of ${role.name}`, ["#Replica", "State", "Machine", "Address", "#Restarts", "Last end"],
      role.places.map((each) => [each.index, state(each.phase), each.machine, each.address, count(each.restarts), h("span", { class: "long" }, each.why)]), "none placed"),
  ]);
}

const ownMachines = ({ wanted, names }) => `${count(names.length)} of ${count(wanted)}${names.length ? `: ${names.join(", ")}` : ""}`;

const waiting = (role) => (role.waits_for.length ? `for ${role.waits_for.join(", ")}` : role.unplaced ? `no room for ${count(role.unplaced)}` : failed(role) ? `for a person: ${count(failed(role))}` : "");

const failed = (role) => role.places.filter((each) => each.phase === "failed").length;
