// The answer first: headline, error against tolerance, speed, proof, and what runs in which type.
function tile(title, value, note, extra = null) {
  return el("div", { class: "tile" }, el("h3", {}, title), el("p", { class: "value" }, value), note && el("p", { class: "note" }, note), extra);
}

function meter(share) {
  const fill = el("span", { class: share > 1 ? "over" : "within" });
  fill.style.width = `${Math.min(100, share * 100)}%`;
  return el("div", { class: "meter", "aria-hidden": "true" }, fill);
}

function errorTile(answer) {
  const limit = answer.tolerance;
  const finite = Number.isFinite(number(answer.error));
  const figures = [answer.error, answer.error_max].filter((error) => error !== null && error !== undefined).map((error) => spell(error, 4));
  if (answer.error === null) return tile("Error", "no figure", "The check says yes or no.");
  const of = limit ? `tolerance ${spell(limit)}${answer.limits ? ", as a multiple of the limits" : answer.limit_kind && ` (${answer.limit_kind})`}.` : "";
  return tile("Error", [...new Set(figures)].join(" to "), of, limit && finite ? meter(number(answer.error_max ?? answer.error) / limit) : null);
}

// What to deploy large, and what it gains below.
function leading(words) {
  const [value, ...rest] = words.split(/(?<=[:;,]) /);
  return [value.replace(/[:;,]$/, ""), rest.join(" ")];
}

function speedTile(answer) {
  const { latency, speed } = answer;
  if (speed && speed.speedup) {
    const met = speed.met ? "limits met" : "limits not met";
    return tile("Speed", `${spell(speed.speedup)} × all high`, `${spell(speed.latency_ms)} ms; ${met}`);
  }
  if (!latency || latency.kept === null) return null;
  const parts = [["all high", latency.all_high], ["all low", latency.all_low]].filter(([, ms]) => ms !== null);
  const times = latency.all_high ? `, ${spell(latency.all_high / latency.kept)} × all high` : "";
  return tile("Speed", `${spell(latency.kept)} ms${times}`, parts.map(([word, ms]) => `${word} ${spell(ms)} ms`).join(", "));
}

function honouredTile(answer) {
  const words = { true: ["yes", "Every kept layer was seen at its type in the engine."], false: ["no", "The engine computes a kept layer low; see the list below."] };
  if (!(answer.honoured in words) && !answer.seen) return null;
  const [value, note] = words[answer.honoured] ?? ["not seen", ""];
  return tile("Engine obeys", answer.seen && value === "not seen" ? "not shown" : value, answer.seen || note);
}

function proofTile(answer) {
  const [word, ...rest] = answer.proof.split(": ");
  return tile("Certificate", word, rest.join(": "));
}

// One bar over all nodes: how many compute in which type, and what merely follows.
function shares(counts) {
  const total = counts.reduce((sum, count) => sum + count, 0) || 1;
  const bar = el("div", { class: "shares", "aria-hidden": "true" });
  [1, 3, 0, 2, 5, 4].filter((state) => counts[state]).forEach((state) => {
    const part = el("span", { class: STATES[state].key });
    part.style.width = `${(100 * counts[state]) / total}%`;
    bar.append(part);
  });
  return bar;
}

function countStates(list) {
  const counts = STATES.map(() => 0);
  list.forEach((state) => { counts[state] += 1; });
  return counts;
}

function legend(counts) {
  return el("ul", { class: "legend" }, [1, 3, 0, 2, 5, 4].filter((state) => counts[state]).map((state) =>
    el("li", {}, glyph(state), `${counts[state].toLocaleString("en")} ${STATES[state].word}`)));
}

function drawAnswer() {
  const answer = data.answer;
  document.title = `${data.model}: ${answer.title}`;
  byId("model").textContent = data.model;
  byId("headline").textContent = answer.title;
  byId("badge").textContent = answer.badge;
  byId("badge").classList.add(answer.tone);
  byId("message").hidden = !answer.message;
  byId("message").textContent = answer.message;
  byId("banner").hidden = !answer.banner;
  byId("banner").textContent = answer.banner;
  const tiles = answer.deploy ? [tile("Deploy", ...leading(answer.deploy))] : [];
  if (answer.error !== null || answer.answered) tiles.push(errorTile(answer));
  if (answer.answered) tiles.push(speedTile(answer));
  if (answer.proof) tiles.push(proofTile(answer));
  if (answer.answered && answer.kept) tiles.push(honouredTile(answer));
  byId("figures").append(...tiles.filter(Boolean));
  const counts = countStates(layers.state);
  if (layers.complete) byId("precisions").append(shares(counts), legend(counts));
  if (answer.precisions.length > 2) byId("precisions").append(table(["Type", "Layers"], answer.precisions, (row) => [row[0].toUpperCase(), String(row[1])]));
  byId("precisions").append(facts(answer.facts));
  const { command, about } = answer.run;
  if (command) byId("run").append(commandLine(command), copyButton(command, "Copy command"));
  byId("run").append(el("p", { class: "hint" }, about));
  byId("remarks").append(...answer.remarks.map((text) => el("li", {}, text)));
}
