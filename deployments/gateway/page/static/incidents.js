// Incidents, newest first.

import { asksBox, done, waitsBox } from "./asks.js";
import { clock, count, h, incidentLink, jobLink, part, seconds, state, table, words } from "./dom.js";

export function incidentTable(rows) {
  return table("Incidents", ["Incident", "State", "Class", "Job", "Machine", "Detected", "#Back after", "Summary"],
    rows.map((row) => [
      incidentLink(row.id), state(row.state), words(row.class), jobLink(row.job), row.machine ?? "", clock(row.detected_at),
      row.recovered_at ? seconds(row.recovered_at - row.detected_at) : "", h("span", { class: "long" }, row.summary),
    ]), "no incidents");
}

const FILTERS = ["job", "machine", "class", "state"];
const AT_FIRST = 30;
const MOST = 1000;

export const incidentsOf = (filters) => `#/incidents?${new URLSearchParams(filters)}`;

// The address has the filters, so that a list can be linked to.
export function incidentsView(main) {
  main.append(h("h1", {}, "Incidents"));
  const asks = part(main, "asks");
  const waits = part(main, "waits");
  const chosen = Object.fromEntries(new URLSearchParams(location.hash.split("?")[1] ?? ""));
  let limit = AT_FIRST;
  const given = () => FILTERS.filter((name) => chosen[name]).map((name) => [name, chosen[name]]);
  const choose = (name, value) => {
    chosen[name] = value;
    limit = AT_FIRST;
    history.replaceState(null, "", given().length ? incidentsOf(given()) : "#/incidents");
    done();
  };
  const filters = new Filters(chosen, choose);
  const list = part(main, "list");
  list.section.prepend(filters.form);
  const more = part(main, "more");
  return {
    title: "Incidents",
    sources: [
      {
        path: "/v1/page/overview",
        every: () => 2000,
        draw(facts) {
          asks.draw(facts.asks, asksBox);
          waits.draw(facts.waits, waitsBox);
        },
      },
      {
        path: () => `/v1/page/incidents?${new URLSearchParams([...given(), ["limit", limit]])}`,
        every: () => 2000,
        draw(facts) {
          filters.offer(facts);
          list.draw(facts.incidents, incidentTable);
          more.draw([facts.incidents.length, facts.count], ([shown, all]) => (shown < all ? rest(shown, all, () => { limit = Math.min(MOST, limit * 4); done(); }) : []));
        },
      },
    ],
  };
}

function rest(shown, all, show) {
  const words = h("span", { class: "soft" }, `The newest ${count(shown)} of ${count(all)}. `);
  if (shown >= MOST) return h("p", {}, words, h("span", { class: "soft" }, "Filter them to see older ones."));
  return h("p", {}, words, h("button", { type: "button", "data-key": "more", onclick: show }, "Show more"));
}

// Names are typed, classes and states are chosen among those that there are.
class Filters {
  constructor(chosen, choose) {
    this.chosen = chosen;
    const typed = (name, label) =>
      h("label", {}, `${label} `, h("input", { name, size: 14, autocomplete: "off", spellcheck: "false", value: chosen[name] ?? "", onchange: (event) => choose(name, event.target.value.trim()) }));
    const picked = (name, label) => {
      const select = h("select", { name, onchange: (event) => choose(name, event.target.value) });
      this[name] = select;
      this.options(select, []);
      return h("label", {}, `${label} `, select);
    };
    this.form = h("form", { class: "filters", "aria-label": "Filter incidents", onsubmit: (event) => event.preventDefault() },
      typed("job", "Job"), typed("machine", "Machine"), picked("class", "Class"), picked("state", "State"));
  }

  offer({ classes, states }) {
    this.options(this.class, classes);
    this.options(this.state, states);
  }

  options(select, names) {
    const now = this.chosen[select.name] ?? "";
    const all = now && !names.includes(now) ? [...names, now] : names;
    const key = JSON.stringify(all);
    if (select.dataset.options === key) return;
    select.dataset.options = key;
    select.replaceChildren(h("option", { value: "" }, "all"), ...all.map((name) => h("option", { value: name }, words(name))));
    select.value = now;
  }
}
