// The kept layers: cause and proof of each, filtered by cause; then advice and how NaNs spread.
function drawKept() {
  if (data.answer.answered && !data.kept.length && !data.advice.length) return byId("why").remove();
  drawGroups();
  byId("kept-title").hidden = !data.kept.length;
  if (!data.kept.length) {
    byId("kept").append(el("p", { class: "hint" }, data.answer.answered ? "No layer is kept." : "Nothing is decided yet."));
  } else {
    const causes = new Set(data.kept.map(causeOf));
    const shown = new Set(causes);
    const draw = () => byId("kept").replaceChildren(keptTable(data.kept.filter((row) => shown.has(causeOf(row)))));
    if (causes.size > 1) [...causes].forEach((cause) => {
      const count = data.kept.filter((row) => causeOf(row) === cause).length;
      byId("causes").append(chip(`${cause} ${count}`, true, (now) => { shown[now ? "add" : "delete"](cause); draw(); }));
    });
    draw();
  }
  drawIslands();
  drawBorderline();
  drawAdvice();
  drawSpread();
}

// The kept layers by what they are: the same operators in many modules, kept for the same cause.
function drawGroups() {
  if (!data.groups.length) return;
  const span = ([least, most]) => (spell(least) === spell(most) ? spell(least) : `${spell(least)} to ${spell(most)}`);
  const where = (places) => (places.length > 3 ? `${places.slice(0, 3).join(", ")} and ${places.length - 3} more` : places.join(", "));
  const tried = data.groups.some((each) => each.without);
  const placed = data.groups.some((each) => each.places.length);
  const headings = ["What", "Layers", "Why", ...(tried ? ["Error of the answer without one"] : []), ...(placed ? ["Where"] : [])];
  byId("groups").append(table(headings, data.groups, (each) =>
    [el("b", {}, each.title), String(each.layers), each.cause || "not known", ...(tried ? [each.without ? span(each.without) : "not tried"] : []), ...(placed ? [where(each.places)] : [])], 8));
  drawModules();
}

// The answer as PyTorch can be told it.
function drawModules() {
  const told = data.by_modules;
  if (!told) return;
  const hold = told.error === null ? "they hold" : `error ${spell(told.error)}`;
  const words = `${told.names.join(", ")} as a whole: ${hold}, ${plural(told.layers, "layer")} instead of ${data.kept.length}${told.minimal ? "; none can be dropped" : ""}.`;
  byId("groups").append(el("h3", {}, "As whole modules"), el("p", { class: "path" }, words));
}

// What the kept layers cost that have to go low together, the dearest first.
function drawIslands() {
  const { words, rows } = data.islands;
  if (!words && !rows.length) return;
  const ms = (value) => `${spell(value)} ms`;
  byId("islands").append(el("h3", {}, "What they cost"));
  if (words) byId("islands").append(el("p", { class: "hint" }, sentence(words)));
  if (rows.length) byId("islands").append(table(["Island", "Its layers take", "Casts around it take", "Saved if all of it ran low"], rows, (row) =>
    [el("b", {}, row.name), ms(row.ms), ms(row.casts_ms), ms(row.saves_ms)], 8));
}

function drawBorderline() {
  const rows = data.diagnosis.filter((row) => !row.kept && row.cause);
  if (!rows.length || !data.answer.answered) return;
  const takes = (row) => `${spell(100 * number(row.figures.share), 2)} %`;
  const headings = ["Layer", ...(SEVERAL_TYPES ? ["Runs"] : []), "Takes", "Cause", "Evidence"];
  byId("borderline").append(el("h3", {}, "Borderline layers"), el("p", { class: "hint" }, "Low in the answer, and nearly kept. Each takes so much of the tolerance: what it added in a trial, or its error alone, whichever is larger."), table(headings, rows, (row) =>
    [keptName([nameOf(row.layer)]), ...(SEVERAL_TYPES ? [(row.low ?? "").toUpperCase()] : []), row.figures.share === undefined ? "no figure" : takes(row), el("span", { class: "cause" }, row.cause), row.evidence ?? ""]));
}

const causeOf = (row) => diagnosisByLayer.get(layerByName.get(row.layer))?.cause ?? row.cause ?? "unknown";
const evidenceOf = (row) => diagnosisByLayer.get(layerByName.get(row.layer))?.evidence ?? row.evidence ?? "";

function keptTable(rows) {
  const seen = rows.some((row) => row.honoured);
  const timed = rows.some((row) => row.ms !== null);
  const headings = ["Layer", ...(SEVERAL_TYPES ? ["Cannot be"] : []), "Cause", "Evidence", "Proof", ...(seen ? ["Engine"] : []), ...(timed ? ["Takes, if low"] : [])];
  const cellsOf = (row) => {
    const type = SEVERAL_TYPES ? [(diagnosisByLayer.get(layerByName.get(row.layer))?.low ?? "").toUpperCase()] : [];
    const cells = [...type, causeOf(row), evidenceOf(row), row.certificate ? proofText(row.certificate) : "not tested"];
    return seen ? [...cells, (row.honoured ?? "not seen").replaceAll("_", " ")] : cells;
  };
  return table(headings, together(rows, cellsOf), ({ names, cells, ms, low_ms }) =>
    [keptName(names), ...cells.map((cell, place) => (headings[place + 1] === "Cause" ? el("span", { class: "cause" }, cell) : cell)), ...(timed ? [`${spell(ms)}, ${spell(low_ms)} ms`] : [])], 8);
}

// What one layer of a module writes the next one reads: where all else is the same, too, they share a row.
function together(rows, cellsOf) {
  const shared = [];
  rows.forEach((row) => {
    const cells = cellsOf(row);
    const alike = [scopeOf(row.layer), ...cells].join("\n").replace(/^(in|out)put /m, "");
    const last = shared.at(-1);
    if (scopeOf(row.layer) && last?.alike === alike) {
      last.names.push(row.layer);
      last.ms += number(row.ms);
      last.low_ms += number(row.low_ms);
      last.cells = last.cells.map((cell) => cell.replace("the answer without it", "the answer without one of them"));
    } else shared.push({ names: [row.layer], cells, alike, ms: number(row.ms), low_ms: number(row.low_ms) });
  });
  return shared;
}

const scopeOf = (name) => (layerByName.has(name) ? textAt(layers.module, layerByName.get(name)) : "");

function keptName(names) {
  const links = names.map((name) => (layerByName.has(name) ? layerLink(layerByName.get(name)) : name));
  const scope = scopeOf(names[0]);
  return el("span", { class: "named" }, el("span", { class: "links" }, links), scope ? el("span", { class: "path" }, scope) : null);
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

// Advice about all kept layers needs no names.
const aboutSome = (names) => !data.kept.length || data.kept.some((row) => !names.includes(row.layer));

function drawAdvice() {
  if (!data.advice.length) return;
  byId("advice").append(el("h3", {}, "What to change"), el("div", { class: "cards wide" }, data.advice.map((each) =>
    el("article", { class: "card" }, el("h4", {}, String(each.title ?? "")), el("p", {}, String(each.text ?? "")),
      each.evidence ? el("p", { class: "hint" }, sentence(String(each.evidence))) : null,
      each.layers.length && aboutSome(each.layers) ? el("p", { class: "links" }, each.layers.slice(0, 4).map((name) => (layerByName.has(name) ? layerLink(layerByName.get(name), shortOf(layerByName.get(name))) : String(name))), each.layers.length > 4 ? `and ${each.layers.length - 4} more` : null) : null))));
}

function drawSpread() {
  if (!data.spread.length) return;
  byId("spread").append(el("h3", {}, "Where NaN and Inf are born, and how they spread"), table(["Born at", "What", "Path to the output"], data.spread, (each) =>
    [String(each.layer), String(each.born), (Array.isArray(each.path) ? each.path : []).map((name) => String(name).split("/").pop()).join(" → ")], 6));
}
