// All jobs and machines at a glance.

import { asksBox, waitsBox } from "./asks.js";
import { count, h, incidentLink, jobLink, part, percent, seconds, state, table, words } from "./dom.js";
import { incidentTable } from "./incidents.js";
import { MachineGrid, summary } from "./machines.js";

export function overviewView(main) {
  main.append(h("h1", { class: "sr" }, "Jobs and machines"));
  const asks = part(main, "asks");
  const waits = part(main, "waits");
  const jobs = part(main, "jobs", "Jobs");
  const machines = part(main, "machines", "Machines");
  const counts = h("div", {});
  machines.body.append(counts);
  const grid = new MachineGrid(machines.body, (name) => (location.hash = `#/machines/${encodeURIComponent(name)}`), 160);
  const incidents = part(main, "incidents", "Incidents");
  const footer = part(main, "about");
  return {
    title: "Jobs",
    sources: [{
      path: "/v1/page/overview",
      every: () => 2000,
      draw(facts) {
        asks.draw(facts.asks, asksBox);
        waits.draw(facts.waits, waitsBox);
        jobs.draw(facts.jobs, jobTable);
        counts.replaceChildren(summary(facts.machines, facts.pool));
        grid.set(facts.machines);
        incidents.draw(facts.incidents.slice(0, 12), incidentTable);
        footer.draw(facts.prefect, prefect);
      },
    }],
  };
}

function jobTable(jobs) {
  return table("Jobs", ["Job", "State", "#Step", "#ETTR", "#Last hour", "Most lost to", "#Ranks", "Open incident"],
    jobs.map((job) => [
      jobLink(job.name), [state(job.state), waiting(job.kept_signals)], count(job.step), job.ettr_note || percent(job.ettr), percent(job.ettr_window),
      mostLost(job.lost_by_phase_s), count(job.world_size),
      job.incident ? [incidentLink(job.incident.id), ` ${words(job.incident.class)}`] : "",
    ]), "No jobs yet. Submit one: holdfast submit JOBFILE");
}

const waiting = (signals) => (signals.length ? h("span", { class: "soft", title: signals.join("\n") }, ` ${signals.length === 1 ? "a signal waits" : `${signals.length} signals wait`} for the end of the hold`) : "");

const mostLost = (lost) =>
  Object.entries(lost).sort((a, b) => b[1] - a[1]).slice(0, 2).map(([phase, value]) => `${words(phase)} ${seconds(value)}`).join(", ");

function prefect({ ui, up, lacks }) {
  const missing = lacks.length ? `, and has no deployment of ${lacks.join(", ")}: their incidents run without it` : "";
  return h("p", { class: "soft" }, up ? `Prefect answers${missing}` : "Prefect does not answer: playbooks run with a private server",
    ui ? [": ", h("a", { href: ui, rel: "noreferrer" }, ui)] : null);
}
