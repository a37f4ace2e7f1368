// What waits for a person, with the two answers.

import { askAnswer } from "./dialogs.js";
import { clock, h, incidentLink } from "./dom.js";

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
