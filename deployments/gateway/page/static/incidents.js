// Incidents, newest first.

import { asksBox, waitsBox } from "./asks.js";
import { clock, h, incidentLink, jobLink, part, seconds, state, table, words } from "./dom.js";

export function incidentTable(rows) {
  return table("Incidents", ["Incident", "State", "Class", "Job", "Machine", "Detected", "#Back after", "Summary"],
    rows.map((row) => [
      incidentLink(row.id), state(row.state), words(row.class), jobLink(row.job), row.machine ?? "", clock(row.detected_at),
      row.recovered_at ? seconds(row.recovered_at - row.detected_at) : "", h("span", { class: "long" }, row.summary),
    ]), "no incidents");
}

export function incidentsView(main) {
  main.append(h("h1", {}, "Incidents"));
  const asks = part(main, "asks");
  const waits = part(main, "waits");
  const list = part(main, "list");
  return {
    title: "Incidents",
    sources: [{
      path: "/v1/page/overview",
      every: () => 2000,
      draw(facts) {
        asks.draw(facts.asks, asksBox);
        waits.draw(facts.waits, waitsBox);
        list.draw(facts.incidents, incidentTable);
      },
    }],
  };
}
