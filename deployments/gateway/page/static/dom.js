// Elements and words. Texts only ever become text nodes: nothing here makes markup of data.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false).map(asNode));
  return element;
}

const asNode = (child) => (child instanceof Node ? child : document.createTextNode(String(child)));

// A part of a view that is drawn again only when its facts changed; the focus stays where it was.
export function part(parent, name, title) {
  const body = h("div", { class: "body" });
  const section = h("section", { class: `part ${name}`, "aria-label": title ? null : name }, title ? h("h2", {}, title) : null, body);
  parent.append(section);
  let before;
  return {
    section,
    body,
    draw(facts, make) {
      const now = JSON.stringify(facts);
      if (now === before) return;
      before = now;
      const key = body.contains(document.activeElement) ? document.activeElement.dataset.key : null;
      body.replaceChildren(...[make(facts)].flat(Infinity).filter(Boolean));
      if (key) body.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
    },
  };
}

export function table(caption, columns, rows, empty = "none") {
  if (!rows.length) return h("p", { class: "soft" }, empty);
  const head = columns.map((column) => h("th", { scope: "col", class: column.startsWith("#") ? "number" : null }, column.replace("#", "")));
  const body = rows.map((cells) =>
    h("tr", {}, cells.map((cell, at) => {
      const kind = columns[at].startsWith("#") ? "number" : null;
      return at === 0 ? h("th", { scope: "row", class: kind }, cell) : h("td", { class: kind }, cell);
    })),
  );
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "sr" }, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

export const words = (text) => String(text ?? "").replaceAll("_", " ");

export const state = (name) => h("span", { class: `state ${/^[a-z_]+$/.test(name) ? name : ""}` }, words(name));

export const link = (path, text) => h("a", { href: `#/${path.map(encodeURIComponent).join("/")}`, "data-key": path.join("/") }, text);

export const incidentLink = (id) => link(["incidents", id], id);

export const jobLink = (name) => link(["jobs", name], name);

export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "";
  if (value === 0) return "0 s";
  const size = Math.abs(value);
  if (size < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (size < 0.1) return `${(value * 1e3).toFixed(1)} ms`;
  if (size < 120) return `${value.toFixed(size < 10 ? 2 : 0)} s`;
  if (size < 7200) return `${(value / 60).toFixed(0)} min`;
  if (size < 172800) return `${(value / 3600).toFixed(1)} h`;
  return `${(value / 86400).toFixed(1)} d`;
}

export const percent = (value) => (value === null || value === undefined ? "" : `${(100 * value).toFixed(1)} %`);

export const count = (value) => (value === null || value === undefined ? "" : Number(value).toLocaleString("en").replaceAll(",", "\u202f"));

export function clock(at) {
  if (!at) return "";
  const when = new Date(at * 1000);
  const day = when.toDateString() === new Date().toDateString() ? "" : `${when.toLocaleDateString("en-CA")} `;
  // Logs of other hosts, and people elsewhere, go by UTC.
  const utc = when.getTimezoneOffset() ? ` (${when.toISOString().slice(11, 19)} UTC)` : " UTC";
  return h("time", { datetime: when.toISOString(), title: when.toISOString() }, day + when.toLocaleTimeString("en-GB") + utc);
}

// Puts a name or id where it can be pasted.
export function copy(text) {
  const button = h("button", { type: "button", class: "quiet", "aria-label": `Copy ${text}`, "data-key": `copy ${text}`, onclick: async () => {
    button.textContent = (await toClipboard(text)) ? "copied" : "not allowed here";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  } }, "copy");
  return button;
}

async function toClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  // By plain HTTP from another host there is only the old way.
  const put = (event) => { event.clipboardData.setData("text/plain", text); event.preventDefault(); };
  document.addEventListener("copy", put, { once: true });
  const went = document.execCommand("copy");
  document.removeEventListener("copy", put);
  return went;
}

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// A bar of pieces, each as wide as its share; with a legend that states the same in words.
export function stack(pieces, total, label) {
  const shown = pieces.filter((piece) => piece.value > 0);
  const bar = h("div", { class: "stack", role: "img", "aria-label": `${label}: ${shown.map((piece) => `${piece.name} ${piece.text}`).join(", ")}` },
    shown.map((piece) => {
      const element = h("span", { class: `piece ${piece.class}`, title: `${piece.name} ${piece.text}` });
      element.style.flexGrow = String(piece.value / total);
      return element;
    }));
  return [bar, h("ul", { class: "legend" }, shown.map((piece) => h("li", {}, h("span", { class: `swatch ${piece.class}` }), `${piece.name} `, h("b", {}, piece.text))))];
}

export function lostStack(productive, lost, label) {
  const pieces = Object.entries(lost).sort((a, b) => b[1] - a[1])
    .map(([phase, value]) => ({ name: words(phase), value, text: seconds(value), class: `phase-${/^[a-z_]+$/.test(phase) ? phase : ""}` }));
  if (productive) pieces.unshift({ name: "new steps", value: productive, text: seconds(productive), class: "phase-productive" });
  const total = pieces.reduce((sum, piece) => sum + piece.value, 0);
  return total ? stack(pieces, total, label) : h("p", { class: "soft" }, "no time lost");
}
