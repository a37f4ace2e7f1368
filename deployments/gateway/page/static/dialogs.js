// Everything that changes something is confirmed in a dialog that shows what will happen.

import { login, logout, post } from "./api.js";
import { h } from "./dom.js";

const dialog = () => document.getElementById("dialog");

// Shows a form; `act` gets its fields and may throw. Resolves to true once it was done, false when it was left.
function ask({ title, text, fields, yes, danger, act, must = false }) {
  return new Promise((resolve) => {
    const box = dialog();
    const error = h("p", { class: "error", role: "alert" });
    const submit = h("button", { type: "submit", class: danger ? "danger" : "primary" }, yes);
    const leave = () => {
      box.close();
      resolve(false);
    };
    const form = h("form", {
      onsubmit: async (event) => {
        event.preventDefault();
        submit.disabled = true;
        error.textContent = "";
        try {
          await act(Object.fromEntries(new FormData(form)));
          box.close();
          resolve(true);
        } catch (failure) {
          error.textContent = failure.message;
          submit.disabled = false;
        }
      },
    },
    h("h2", { id: "dialog-title" }, title), text ? h("p", {}, text) : null, fields, error,
    h("div", { class: "buttons" }, must ? null : h("button", { type: "button", onclick: leave }, "Cancel"), submit));
    box.oncancel = (event) => {
      event.preventDefault();
      if (!must) leave();
    };
    box.replaceChildren(form);
    if (!box.open) box.showModal();
    (form.querySelector("[autofocus]") ?? form.querySelector("input, textarea") ?? submit).focus();
  });
}

const field = (label, input, help) => h("label", { class: "field" }, h("span", {}, label), input, help ? h("small", {}, help) : null);

const reason = (help) => field("Why", h("input", { name: "reason", required: true, maxlength: "2000", autocomplete: "off", autofocus: true }), help);

export function askLogin() {
  return ask({
    title: "Log in",
    must: true,
    yes: "Log in",
    fields: [
      field("Your name", h("input", { name: "by", required: true, maxlength: "100", autocomplete: "username", autofocus: true }), "Kept with what you do here."),
      field("Secret", h("input", { name: "secret", type: "password", required: true, autocomplete: "current-password" }), "The content of the site's secret file (.holdfast/secret)."),
    ],
    act: ({ secret, by }) => login(secret, by),
  });
}

export function askEvict(machine, job, role) {
  return ask({
    title: `Evict ${machine}?`,
    text: role
      ? `The replicas of ${role} leave it, a standby takes its place, and job ${job} trains on meanwhile.`
      : job
      ? `Job ${job} stops, a standby takes the machine's place, and training goes on from the newest checkpoint.`
      : "The machine leaves the standby pool and is kept out until it is released.",
    danger: true,
    yes: `Evict ${machine}`,
    fields: [
      reason("Kept with the machine, the incident and the audit."),
      field("Keep it from", h("select", { name: "scope" }, h("option", { value: "cluster" }, "every job"), h("option", { value: "job" }, "its job only"))),
    ],
    act: ({ reason, scope }) => acted(post(`/v1/machines/${encodeURIComponent(machine)}/evict`, { reason, scope })),
  });
}

export function askRelease(machine, because) {
  return ask({
    title: `Release ${machine}?`,
    text: `It restarts and becomes a standby once it passes its checks.${because ? ` It was evicted because: ${because}` : ""}`,
    yes: `Release ${machine}`,
    fields: [reason("What was done about it? Kept in the audit.")],
    act: ({ reason }) => acted(post(`/v1/machines/${encodeURIComponent(machine)}/release`, { reason })),
  });
}

export function askAnswer(asked, approve) {
  return ask({
    title: approve ? `Approve for ${asked.incident}?` : `Refuse for ${asked.incident}?`,
    text: asked.question,
    danger: approve,
    yes: approve ? "Approve" : "Refuse",
    fields: [reason("Goes into the incident report and the audit.")],
    act: ({ reason }) => post(`/v1/incidents/${encodeURIComponent(asked.incident)}/approve`, { approve, reason }),
  });
}

export function askLogout(by) {
  return ask({ title: `Log out ${by}?`, yes: "Log out", fields: [], act: logout });
}

const NOT_DONE = ["refused", "ignored", "suppressed"];

// An eviction goes the way of an alert: it may lead to nothing although the request was well-formed.
async function acted(request) {
  const answer = await request;
  if (NOT_DONE.includes(answer.outcome)) throw new Error(answer.message || answer.outcome);
}
