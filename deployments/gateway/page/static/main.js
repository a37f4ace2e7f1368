// The page: which view the address asks for, and polling it while a person looks.

import { Failure, get, session } from "./api.js";
import { askLogin, askLogout } from "./dialogs.js";
import { h } from "./dom.js";
import { incidentView } from "./incident.js";
import { incidentsView } from "./incidents.js";
import { jobView } from "./job.js";
import { machinesView } from "./machines.js";
import { overviewView } from "./overview.js";

const main = document.getElementById("main");
const live = document.getElementById("live");
const account = document.getElementById("account");

const ROUTES = [
  [/^\/$/, overviewView],
  [/^\/machines$/, machinesView],
  [/^\/machines\/([^/]+)$/, machinesView],
  [/^\/incidents$/, incidentsView],
  [/^\/incidents\/([^/]+)$/, incidentView],
  [/^\/jobs\/([^/]+)$/, jobView],
];

let shown = 0; // grows with every view: answers for an older one are dropped
let timers = [];
let wake = [];

function open() {
  const path = location.hash.replace(/^#/, "").split("?")[0] || "/";
  if (!path.startsWith("/")) return; // the skip link
  for (const timer of timers) clearTimeout(timer);
  timers = [];
  wake = [];
  shown += 1;
  const [pattern, make] = ROUTES.find(([route]) => route.test(path)) ?? [];
  document.querySelectorAll("[data-nav]").forEach((item) => {
    const mine = path.split("/")[1] === item.dataset.nav || (item.dataset.nav === "" && path.startsWith("/jobs"));
    if (mine) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  });
  main.replaceChildren();
  if (!make) {
    main.append(h("h1", {}, "There is no such view"), h("p", {}, h("a", { href: "#/" }, "All jobs")));
    return;
  }
  const view = make(main, ...path.match(pattern).slice(1).map(decodeURIComponent));
  document.title = `${view.title} · Holdfast`;
  for (const source of view.sources) poll(source, shown);
}

// Asks again and again; at most every `every` milliseconds, or at once when something was done.
async function poll(source, view) {
  let timer;
  const again = (wait) => {
    if (view !== shown) return;
    clearTimeout(timer);
    timer = setTimeout(round, wait);
    timers.push(timer);
  };
  const round = async () => {
    if (view !== shown) return;
    if (document.hidden) return again(1000);
    const path = typeof source.path === "function" ? source.path() : source.path;
    if (path) {
      try {
        const answer = await get(path);
        if (view !== shown) return;
        if (answer.changed || source.drawn !== path) drawn(source, answer);
        source.drawn = path;
        say(true);
      } catch (error) {
        if (view !== shown) return;
        if (error instanceof Failure && error.status === 401) return enter();
        say(false, error);
      }
    }
    again(source.every());
  };
  wake.push(() => again(0));
  await round();
}

// The gateway may have been upgraded under an open page: then it is not the gateway that does not answer.
function drawn(source, answer) {
  try {
    source.draw(answer.data, answer.now);
  } catch (error) {
    console.error(error);
    throw new Failure(0, "this view cannot be drawn: reload the page");
  }
}

function say(well, error) {
  const text = well ? "live" : error instanceof Failure ? error.message : "the gateway does not answer";
  if (live.textContent !== text) live.textContent = text;
  live.classList.toggle("broken", !well);
}

// Everything is read again soon after an action of a person.
const refresh = () => wake.forEach((again) => again());

async function enter() {
  shown += 1;
  live.textContent = "not logged in";
  await askLogin();
  await start();
}

async function start() {
  const by = await session().catch(() => null);
  account.textContent = by ? `Log out ${by}` : "Log in";
  account.onclick = by
    ? async () => {
      if (await askLogout(by)) location.reload();
    }
    : enter;
  if (by) open();
  else await enter();
}

window.addEventListener("hashchange", () => {
  if (!location.hash.startsWith("#/")) return;
  open();
  window.scrollTo(0, 0);
  main.focus({ preventScroll: true });
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.addEventListener("visibilitychange", () => document.hidden || refresh());
document.addEventListener("holdfast:done", refresh);
// Canvases hold colours: with other colours the view is made again.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.getElementById("dialog").open || open());
start();
