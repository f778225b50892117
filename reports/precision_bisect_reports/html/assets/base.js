// What every other script uses: the data, elements made without markup, figures as text.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

// Children are elements or text; text is never parsed. Attributes that begin with "on" are handlers.
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || (value === false && !key.startsWith("aria-"))) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else made.setAttribute(key, value === true && !key.startsWith("aria-") ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== "").flatMap(unbroken));
  return made;
}

// Lines end at hyphens, but not at those of a flag or a date. The names of layers may be of any length.
const WHOLE = /(--[a-z][\w-]{0,32}|\b\d{4}-\d\d-\d\d\b)/;
function unbroken(child) {
  if (typeof child !== "string" || !child.includes("-")) return child;
  const whole = (text) => Object.assign(document.createElement("span"), { className: "whole", textContent: text });
  return child.split(WHOLE).map((part, place) => (place % 2 ? whole(part) : part)).filter((part) => part !== "");
}

const STATES = [
  { key: "low", glyph: "●", word: "low" },
  { key: "kept", glyph: "▲", word: "kept" },
  { key: "follower", glyph: "○", word: "follower" },
  { key: "fixed", glyph: "■", word: "cannot run lower" },
  { key: "other", glyph: "·", word: "not decided on" },
  { key: "open", glyph: "◇", word: "still open" },
];
const KEPT = 1;
const DECIDED = [0, 1, 2, 3, 5]; // the states of all nodes but constants and the like
const layers = data.layers;
const nameOf = (layer) => layers.name[layer];
const textAt = (column, place) => column.texts[column.at[place]];
// Out of the list of layers a last name says too little: many modules have a Pow.
const shortOf = (layer) => [textAt(layers.module, layer).split("/").pop(), leafOf(layer)].filter(Boolean).join("/");
const leafOf = (layer) => nameOf(layer).split("/").pop() || nameOf(layer);
const layerByName = new Map(layers.name.map((name, place) => [name, place]));
const keptByLayer = new Map(data.kept.map((row) => [layerByName.get(row.layer), row]));
// A layer of a ladder has a row for each type below its own, the highest first.
const SEVERAL_TYPES = new Set(data.diagnosis.map((row) => row.low)).size > 1;
const diagnosesByLayer = new Map();
data.diagnosis.forEach((row) => diagnosesByLayer.set(row.layer, [...(diagnosesByLayer.get(row.layer) ?? []), row]));
const diagnosisByLayer = new Map([...diagnosesByLayer].map(([layer, rows]) => [layer, rows[0]]));
const sensitivityByLayer = new Map(
  data.sensitivity.layer.map((layer, place) => [
    layer,
    { error: number(data.sensitivity.error[place]), together: data.sensitivity.together[place] },
  ]),
);

// Infinite figures are the text "inf" in the data.
function number(value) {
  return value === "inf" ? Infinity : value;
}

function spell(value, digits = 3) {
  const figure = number(value);
  if (figure === null || figure === undefined) return "no figure";
  if (typeof figure !== "number") return String(figure);
  if (!Number.isFinite(figure)) return "not finite";
  if (figure === 0) return "0";
  const size = Math.abs(figure);
  return size >= 1e-4 && size < 1e6 ? String(Number(figure.toPrecision(digits))) : figure.toExponential(digits - 1);
}

function timesTolerance(error) {
  const limit = data.answer.tolerance;
  if (!limit || error === null || error === undefined) return "";
  return Number.isFinite(number(error)) ? `${spell(number(error) / limit, 2)} × the tolerance` : "";
}

const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const glyph = (state) => el("span", { class: `glyph ${STATES[state].key}`, "aria-hidden": "true" }, STATES[state].glyph);

function button(text, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, text);
}

// A button that stays pressed or not.
function chip(text, pressed, changed, attributes = {}) {
  const made = button(text, () => {
    const now = made.getAttribute("aria-pressed") !== "true";
    made.setAttribute("aria-pressed", now);
    changed(now);
  }, { "aria-pressed": pressed, ...attributes });
  made.classList.add("chip");
  return made;
}

// A command may be folded between its words; a browser would do it behind a hyphen, too.
function commandLine(text) {
  const words = text.split(" ").flatMap((word, place) => [place ? " " : "", el("span", {}, word)]);
  return el("pre", { class: "command", tabindex: "0" }, words);
}

function facts(rows) {
  return el("dl", { class: "facts" }, rows.map(([label, value]) => el("div", {}, el("dt", {}, label), el("dd", {}, value))));
}

// `cells` gives the row's cells; the first `most` rows are made, the rest on demand or for printing.
function table(headings, rows, cells, most = 25) {
  const body = el("tbody");
  const add = (some) => body.append(...some.map((row) => el("tr", {}, cells(row).map((cell, place) =>
    el("td", { "data-label": headings[place] }, cell)))));
  add(rows.slice(0, most));
  const head = el("tr", {}, headings.map((heading) => el("th", { scope: "col" }, heading)));
  const made = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": headings.join(", ") },
    el("table", {}, el("thead", {}, head), body));
  if (rows.length <= most) return made;
  const all = () => {
    if (!more.isConnected) return;
    more.remove();
    add(rows.slice(most));
  };
  const more = button(`Show all ${rows.length.toLocaleString("en")}`, all, { class: "quiet" });
  if (rows.length <= 2000) window.addEventListener("beforeprint", all);
  return el("div", {}, made, more);
}
