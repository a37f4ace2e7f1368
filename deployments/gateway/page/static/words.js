// Values of evidence, intents and results in words: times as times, durations with their unit, lists and objects flat.

import { clock, seconds, words } from "./dom.js";

const EPOCH = [1e9, 5e9]; // seconds since 1970 of any date that is meant
const isTime = (key, value) => typeof value === "number" && (/(^|_)(at|until|since|deadline)$/.test(key) || (!Number.isInteger(value) && value > EPOCH[0] && value < EPOCH[1]));

// An array of texts and elements.
export function inWords(key, value) {
  if (value === null || value === undefined || value === "") return ["none"];
  if (value === true || value === false) return [value ? "yes" : "no"];
  if (isTime(key, value)) return [clock(value)];
  if (typeof value === "number" && /_s$/.test(key)) return [seconds(value)];
  if (typeof value === "number" && !Number.isInteger(value)) return [String(Number(value.toPrecision(4)))];
  if (Array.isArray(value)) return value.length ? joined(value.map((each) => inWords(key, each)), ", ") : ["none"];
  if (typeof value === "object") {
    const pairs = Object.entries(value).filter(([, each]) => each !== null && each !== "");
    return pairs.length ? joined(pairs.map(([name, each]) => [`${label(name)} `, ...inWords(name, each)]), ", ") : ["none"];
  }
  return [String(value)];
}

// The unit stands with the value.
export const label = (key) => words(key.replace(/_s$/, ""));

const joined = (parts, between) => parts.flatMap((part, at) => (at ? [between, ...part] : part));
