// What waits for a person, with the two answers.

import { askAnswer } from "./dialogs.js";
import { clock, h, incidentLink, jobLink } from "./dom.js";

export const done = () => document.dispatchEvent(new Event("holdfast:done"));

export function asksBox(asks) {
  return asks.map((asked) =>
    h("div", { class: "ask" },
      h("p", {}, h("strong", {}, "Needs your answer: "), asked.question, " (", incidentLink(asked.incident), ")"),
      h("p", { class: "soft" }, `Without an answer by `, clock(asked.deadline), ` it counts as ${asked.default === "approve" ? "approved" : "refused"}.`),
      h("div", { class: "buttons" },
        answer(asked, false, "Refuse"),
        answer(asked, true, "Approve…"))));
}

const answer = (asked, yes, text) =>
  h("button", { type: "button", class: yes ? "danger" : "", "data-key": `${asked.incident} ${yes}`, onclick: async () => (await askAnswer(asked, yes)) && done() }, text);

// What a person is needed for, though no playbook asks: it is tried again anyway.
export function waitsBox(waits) {
  return waits.map((wait) =>
    h("div", { class: "ask" },
      h("p", {}, h("strong", {}, "Needs a person: "), wait.why.replace(/\.$/, ""), " (", incidentLink(wait.incident_id), ")"),
      h("p", { class: "soft" }, "Job ", jobLink(wait.job), wait.runs_on ? " runs on" : " stands still", "; tried again at ", clock(wait.next_at), " at the latest.")));
}
