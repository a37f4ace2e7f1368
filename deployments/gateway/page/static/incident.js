// One incident, to be read from top to bottom: what happened, what spoke for it, what was done, how long it took.

import { asksBox } from "./asks.js";
import { clock, copy, h, jobLink, lostStack, part, percent, seconds, state, table, words } from "./dom.js";
import { actTable, fact } from "./machines.js";
import { inWords, label } from "./words.js";

export function incidentView(main, id) {
  main.append(h("h1", {}, `Incident ${id} `, copy(id)));
  const asks = part(main, "asks");
  const facts = part(main, "facts-part");
  const time = part(main, "time", "Where the time went");
  const decisions = part(main, "decisions", "Decisions and actions");
  const repairs = part(main, "repairs", "Repair");
  const signals = part(main, "signals", "Signals and evidence");
  const byHand = part(main, "audit", "By hand");
  return {
    title: id,
    sources: [{
      path: `/v1/page/incidents/${encodeURIComponent(id)}`,
      every: () => 1500,
      draw(view) {
        asks.draw(view.ask ? [view.ask] : [], asksBox);
        facts.draw([view.incident, view.flow_run, view.next], () => head(view));
        time.draw([view.phases, view.until], () => [
          h("p", { class: "soft" }, `From detection to ${view.incident.recovered_at ? "the first new step" : view.incident.closed_at ? "its end" : "now"}: ${seconds(view.until - view.incident.detected_at)}`),
          lostStack(0, view.phases, "Time by phase"),
        ]);
        decisions.draw(view.actions, () => actions(view));
        repairs.section.hidden = !view.repairs.length;
        repairs.draw(view.repairs, () => view.repairs.map((repair) => repairTable(repair, view.incident.detected_at)));
        signals.draw(view.alerts, () => signalList(view));
        byHand.section.hidden = !view.by_hand.length;
        byHand.draw(view.by_hand, actTable);
      },
    }],
  };
}

function head({ incident, flow_run: run, next }) {
  return [
    incident.summary ? h("p", { class: "summary" }, incident.summary) : null,
    next ? h("p", { class: "next" }, `${next.text}`, next.at ? [" ", clock(next.at)] : null, ".") : null,
    h("dl", { class: "facts" },
      fact("State", state(incident.state)), fact("Class", words(incident.incident_class)), fact("Job", [jobLink(incident.job), ` epoch ${incident.epoch}, attempt ${incident.attempt}`]),
      incident.machine ? fact("Machine", h("a", { href: `#/machines/${encodeURIComponent(incident.machine)}` }, incident.machine)) : null,
      incident.rank !== null ? fact("Rank", incident.rank) : null, fact("Confidence", percent(incident.confidence)),
      fact("Detected", clock(incident.detected_at)), incident.recovered_at ? fact("First new step", clock(incident.recovered_at)) : null,
      run ? fact("Flow run", h("a", { href: run, rel: "noreferrer" }, "in the Prefect UI")) : null),
    incident.reasons.length ? [h("h3", {}, "Why this class"), h("ul", { class: "reasons" }, incident.reasons.map((reason) => h("li", {}, reason)))] : null,
  ].flat();
}

function actions({ actions: rows, incident, until }) {
  const zero = incident.detected_at;
  const end = Math.max(until, ...rows.map((row) => row.done_at ?? row.begun_at));
  return table("Actions", ["#After", "#Took", "When", "Action", "Outcome"], rows.map((row) => {
    const took = (row.done_at ?? end) - row.begun_at;
    const bar = h("span", { class: `bar phase-${row.phase ?? "diagnosing"}` });
    bar.style.marginInlineStart = `${(100 * Math.max(0, row.begun_at - zero)) / (end - zero || 1)}%`;
    bar.style.inlineSize = `${Math.max(1, (100 * took) / (end - zero || 1))}%`;
    return [`+${seconds(row.begun_at - zero)}`, row.done_at ? seconds(took) : "under way", h("span", { class: "lane", "aria-hidden": "true" }, bar),
      row.key, [row.state === "failed" ? state("failed") : null, h("span", { class: "long" }, outcome(row))]];
  }), "nothing was done yet");
}

function repairTable(repair, zero) {
  const rows = repair.steps.map((step) => [
    `+${seconds(step.begun_at - zero)}`, step.done_at ? seconds(step.done_at - step.begun_at) : "under way",
    words(step.step), state(step.state), h("span", { class: "long" }, step.said)]);
  return h("div", {}, h("p", {}, `${repair.machine}: ${repair.why}; `, state(repair.state)), table(`Repair of ${repair.machine}`, ["#After", "#Took", "Step", "State", "Outcome"], rows, "not begun yet"));
}

function outcome(row) {
  const told = Object.entries((Object.keys(row.result ?? {}).length ? row.result : row.intent) ?? {});
  return told.filter(([key, value]) => key !== "at" && value !== null && value !== "").map(([key, value], at) => h("span", { class: "said" }, at ? "; " : null, `${label(key)}: `, inWords(key, value)));
}

const LONG = ["traceback", "log_tail"];

// Ranks that only lost a peer say nothing of the cause: they are folded under those that do.
function signalList({ alerts, incident }) {
  const shown = alerts.filter((alert) => !alert.follows);
  const folded = alerts.filter((alert) => alert.follows);
  const ranks = folded.map((alert) => alert.rank).filter((rank) => rank !== null).sort((a, b) => a - b);
  if (!alerts.length) return h("p", { class: "soft" }, "none");
  return [
    shown.map((alert) => signal(alert, incident.detected_at)),
    folded.length ? h("details", {}, h("summary", {}, `${folded.length} more ended because a peer was gone${ranks.length ? `: ranks ${ranks.slice(0, 16).join(", ")}${ranks.length > 16 ? " and others" : ""}` : ""}`), folded.map((alert) => signal(alert, incident.detected_at))) : null,
  ];
}

function signal(alert, zero) {
  const evidence = Object.entries(alert.evidence ?? {}).filter(([, value]) => value !== null && value !== "");
  const short = evidence.filter(([key]) => !LONG.includes(key));
  return h("article", { class: "signal" },
    h("h3", {}, words(alert.kind), h("span", { class: "soft" }, ` ${alert.machine ?? ""}${alert.rank === null ? "" : ` rank ${alert.rank}`} · ${alert.recorded_at >= zero ? "+" : "−"}${seconds(Math.abs(alert.recorded_at - zero))} · ${alert.outcome}`)),
    short.length ? h("dl", { class: "facts" }, short.map(([key, value]) => fact(label(key), inWords(key, value)))) : null,
    evidence.filter(([key]) => LONG.includes(key)).map(([key, value]) =>
      h("details", { open: key === "traceback" }, h("summary", {}, words(key)), h("pre", { tabindex: "0" }, String(value)))));
}
