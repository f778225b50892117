// What is known of the layer that is selected in the tree.
function showModule(module) {
  const share = data.sensitivity.layer.length ? worstIn(module) : null;
  byId("detail").replaceChildren(
    el("h3", {}, module.label), el("p", { class: "path" }, module.path),
    shares(module.counts), legend(module.counts),
    share === null ? el("p") : el("p", { class: "hint" }, "Most sensitive: ", layerLink(share), ` (forecast error ${spell(sensitivityByLayer.get(share).error)})`));
}

function worstIn(node) {
  let worst = null;
  const visit = (item) => {
    if (typeof item !== "number") return item.items.forEach(visit);
    const error = sensitivityByLayer.get(item)?.error ?? -1;
    if (error > (worst === null ? -1 : sensitivityByLayer.get(worst).error)) worst = item;
  };
  visit(node);
  return worst;
}

const layerLink = (layer, text = leafOf(layer)) => button(text, () => reveal(layer), { class: "link", title: nameOf(layer) });

function showLayer(layer) {
  const state = layers.state[layer];
  const precision = layers.precision[layer];
  const found = diagnosisByLayer.get(layer);
  const badge = el("span", { class: `state ${STATES[state].key}` }, glyph(state), precision ? `${STATES[state].word}: ${precision.toUpperCase()}` : STATES[state].word);
  const parts = [
    el("h3", {}, leafOf(layer)),
    el("p", { class: "path" }, nameOf(layer), " ", copyButton(nameOf(layer), "Copy name")),
    el("p", {}, badge, " ", sameWord(layer) ? null : el("span", { class: "op" }, textAt(layers.op, layer))),
    facts(knownOf(layer, found)),
  ];
  const charts = (diagnosesByLayer.get(layer) ?? []).filter((row) => row.histogram).map((row) => ({ row, box: el("div", { class: "chart small" }) }));
  charts.forEach(({ row, box }) => parts.push(el("h4", {}, `Magnitudes of its values${SEVERAL_TYPES && row.low ? `, against ${row.low.toUpperCase()}` : ""}`), box));
  if (charts.length) parts.push(el("p", { class: "hint" }, "Heights are the square roots of shares, so that rare values show."));
  parts.push(facts(aroundOf(layer)));
  const figures = Object.entries(found?.figures ?? {}).map(([name, value]) => [name.replaceAll("_", " "), spell(value, 4)]);
  if (figures.length) parts.push(el("details", {}, el("summary", {}, "All figures"), facts(figures)));
  byId("detail").replaceChildren(...parts);
  byId("detail").scrollTop = 0;
  charts.forEach(({ row, box }) => drawHistogram(box, row.histogram, row.low ?? data.low));
}

function knownOf(layer, found) {
  const rows = [];
  const kept = keptByLayer.get(layer);
  const cause = found?.cause ?? kept?.cause;
  if (found?.cause) diagnosesByLayer.get(layer).forEach((row) => rows.push([row.kept ? whyNot(row) : "Borderline", `${row.cause}: ${row.evidence}`]));
  else if (cause) rows.push(["Why", `${cause}: ${kept.evidence}`]);
  else if (textAt(layers.reason, layer)) rows.push(["Why", textAt(layers.reason, layer)]);
  if (found?.hurts) rows.push(["Hurts", hurtsText(found.hurts)]);
  const follows = layers.follows[layer];
  if (follows !== null) rows.push(["Type of", layerLink(follows)]);
  const alone = sensitivityByLayer.get(layer);
  if (alone) rows.push(["Sensitivity", sensitivityText(alone)]);
  if (kept?.certificate) rows.push(["Proof", proofText(kept.certificate)]);
  if (kept?.honoured) rows.push(["Engine", `${kept.honoured.replaceAll("_", " ")}: ${kept.seen}`]);
  const advice = data.advice.filter((each) => (each.layers ?? []).includes(nameOf(layer)));
  if (advice.length) rows.push(["Advice", advice.map((each) => String(each.title)).join("; ")]);
  return rows;
}

const whyNot = (row) => (SEVERAL_TYPES && row.low ? `Why not ${row.low.toUpperCase()}` : "Why");

function hurtsText({ output, error, path, errors }) {
  const way = path.map((name, place) => [layerByName.get(name), errors[place]]).filter(([layer]) => layer !== undefined);
  const by = number(error) === Infinity ? ", where NaN or Inf come out" : error ? `, by ${spell(error)} of its largest value` : "";
  return el("span", {}, `output ${output}${by}; the way there${errors.length ? ", with the error of what each stores when the layer alone runs low" : ""}: `, wayThere(way));
}

const MOST_ON_THE_WAY = 12;
function wayThere(way) {
  const steps = way.length <= MOST_ON_THE_WAY ? way : [...way.slice(0, MOST_ON_THE_WAY / 2), null, ...way.slice(-MOST_ON_THE_WAY / 2)];
  return el("span", { class: "links" }, steps.flatMap((step) => {
    if (!step) return [`… ${way.length - MOST_ON_THE_WAY} more …`];
    const [layer, error] = step;
    return [layerLink(layer), ...(error === null || error === undefined ? [] : [spell(error, 2)])];
  }));
}

function aroundOf(layer) {
  const rows = [];
  const reads = layers.inputs[layer];
  if (reads.length) rows.push(["Reads from", some(reads)]);
  const feeds = feedsOf(layer);
  if (feeds.length) rows.push(["Feeds", some(feeds)]);
  return rows;
}

const some = (list) => el("span", { class: "links" }, list.slice(0, 8).map((layer) => layerLink(layer)), list.length > 8 ? `and ${list.length - 8} more` : null);

let readers = null;
function feedsOf(layer) {
  if (!readers) {
    readers = new Map();
    layers.inputs.forEach((list, reader) => list.forEach((from) => {
      if (!readers.has(from)) readers.set(from, []);
      readers.get(from).push(reader);
    }));
  }
  return readers.get(layer) ?? [];
}

function sensitivityText({ error, together }) {
  const who = together === 1 ? "it alone runs" : `it and ${together - 1} others run`;
  const times = timesTolerance(error);
  return `forecast error ${spell(error)} when ${who} ${data.sensitivity.low.toUpperCase()}, all else high${times ? ` (${times})` : ""}; ${rankOf(error)} of ${sensitivityByLayer.size.toLocaleString("en")}`;
}

function rankOf(error) {
  let above = 0;
  sensitivityByLayer.forEach((other) => { above += other.error > error ? 1 : 0; });
  return `rank ${above + 1}`;
}

function proofText(proof) {
  const times = timesTolerance(proof.error);
  const figure = proof.error === null ? "" : `: error ${spell(proof.error)}${times ? `, ${times}` : ""}`;
  if (proof.how === "dropped" && proof.needed) return `the answer without it fails${figure}`;
  if (proof.how === "predicted") return `the answer without it is forecast to fail${figure}`;
  return `${proof.reason}${figure}`;
}
