// The list of modules and layers: only the rows in sight exist, so that 5,000 layers cost nothing.
const ROW = 30;
const tree = { top: null, rows: [], at: 0, query: [], shown: new Set(), made: new Map() };

function searchable(layer) {
  const kept = keptByLayer.get(layer);
  const cause = diagnosisByLayer.get(layer)?.cause ?? kept?.cause ?? "";
  return `${nameOf(layer)} ${textAt(layers.op, layer)} ${cause}`.toLowerCase();
}

function matches(layer) {
  if (!tree.shown.has(layers.state[layer])) return false;
  return tree.query.every((word) => tree.texts[layer].includes(word));
}

// Flattens what is open; with words to find, every module that has a match is open.
function visibleRows(node, depth, rows) {
  for (const item of node.items) {
    if (typeof item === "number") {
      if (matches(item)) rows.push({ layer: item, depth });
      continue;
    }
    const place = rows.length;
    rows.push({ module: item, depth, open: item.open || tree.query.length > 0 });
    if (rows[place].open) visibleRows(item, depth + 1, rows);
    const empty = rows[place].open ? rows.length === place + 1 : !anyMatch(item);
    if (empty) rows.length = place;
  }
  return rows;
}

function anyMatch(node) {
  if (!tree.query.length) return node.counts.some((count, state) => count && tree.shown.has(state));
  return node.items.some((item) => (typeof item === "number" ? matches(item) : anyMatch(item)));
}

function refreshTree() {
  const current = tree.rows[tree.at];
  tree.rows = visibleRows(tree.top, 1, []);
  const same = (row) => current && (current.module ? row.module === current.module : row.layer === current.layer);
  tree.at = Math.max(0, tree.rows.findIndex(same));
  const found = layers.state.reduce((sum, _, layer) => sum + (matches(layer) ? 1 : 0), 0);
  byId("shown").textContent = `${found.toLocaleString("en")} of ${plural(layers.name.length, "node")}`;
  tree.space.style.height = `${tree.rows.length * ROW}px`;
  tree.space.classList.toggle("empty", !tree.rows.length);
  drawRows(true);
}

function drawRows(anew = false) {
  const box = byId("tree");
  if (anew) { tree.made.forEach((row) => row.remove()); tree.made.clear(); }
  const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 10);
  const last = Math.min(tree.rows.length, Math.ceil((box.scrollTop + box.clientHeight) / ROW) + 10);
  tree.made.forEach((row, place) => {
    if (place < first || place >= last) { row.remove(); tree.made.delete(place); }
  });
  for (let place = first; place < last; place += 1) {
    if (!tree.made.has(place)) {
      const row = rowElement(tree.rows[place], place);
      row.style.top = `${place * ROW}px`;
      tree.made.set(place, row);
      tree.space.append(row);
    }
    tree.made.get(place).setAttribute("aria-selected", place === tree.at);
  }
  if (tree.made.has(tree.at)) box.setAttribute("aria-activedescendant", `row-${tree.at}`);
  else box.removeAttribute("aria-activedescendant");
}

function rowElement(row, place) {
  const inside = row.module ? moduleCells(row) : layerCells(row.layer);
  const made = el("div", {
    class: row.module ? "row module" : "row layer", id: `row-${place}`, role: "treeitem",
    "aria-level": row.depth, "aria-expanded": row.module ? row.open : null,
    onclick: () => { moveTo(place); if (row.module) toggle(row.module); },
  }, inside);
  made.style.paddingInlineStart = `${8 + 16 * (row.depth - 1)}px`;
  return made;
}

function moduleCells({ module, open }) {
  const words = [1, 3, 0, 2].filter((state) => module.counts[state]).map((state) => `${module.counts[state]} ${STATES[state].word}`);
  const counts = el("span", { class: "counts" }, words.join(", ") || plural(module.counts.reduce((a, b) => a + b, 0), "node"));
  const twist = el("span", { class: "twist", "aria-hidden": "true" }, open ? "▾" : "▸");
  return [twist, el("span", { class: module.counts[KEPT] ? "label has" : "label" }, module.label), counts, shares(module.counts)];
}

function layerCells(layer) {
  const state = layers.state[layer];
  const precision = layers.precision[layer];
  const cause = diagnosisByLayer.get(layer)?.cause ?? keptByLayer.get(layer)?.cause;
  return [glyph(state), el("span", { class: `label ${STATES[state].key}` }, leafOf(layer)),
    sameWord(layer) ? null : el("span", { class: "op" }, textAt(layers.op, layer)),
    cause ? el("span", { class: "cause" }, cause) : null,
    el("span", { class: "counts" }, precision ? precision.toUpperCase() : STATES[state].word)];
}

// Exporters name a layer after its operator, with a number: then the name says it all.
const sameWord = (layer) => leafOf(layer).replace(/^node_/, "").replace(/[_.]?\d+$/, "") === textAt(layers.op, layer);

function toggle(module, open = !module.open) {
  if (module.open === open) return;
  module.open = open;
  refreshTree();
}

function moveTo(place) {
  const box = byId("tree");
  tree.at = Math.max(0, Math.min(tree.rows.length - 1, place));
  const above = tree.at * ROW;
  if (above < box.scrollTop) box.scrollTop = above;
  else if (above + ROW > box.scrollTop + box.clientHeight) box.scrollTop = above + ROW - box.clientHeight;
  drawRows();
  const row = tree.rows[tree.at];
  if (row && !row.module) showLayer(row.layer);
  else if (row) showModule(row.module);
}

function parentOf(place) {
  const { depth } = tree.rows[place];
  while (place > 0 && tree.rows[place].depth >= depth) place -= 1;
  return place;
}

function goInto(row) {
  if (!row.module) return;
  if (row.open) moveTo(tree.at + 1);
  else toggle(row.module, true);
}

function goOut(row) {
  if (row.module && row.module.open && !tree.query.length) toggle(row.module, false);
  else moveTo(parentOf(tree.at));
}

function treeKey(event) {
  const row = tree.rows[tree.at];
  const page = Math.floor(byId("tree").clientHeight / ROW) - 1;
  const act = row && {
    ArrowDown: () => moveTo(tree.at + 1), ArrowUp: () => moveTo(tree.at - 1),
    PageDown: () => moveTo(tree.at + page), PageUp: () => moveTo(tree.at - page),
    Home: () => moveTo(0), End: () => moveTo(tree.rows.length - 1),
    ArrowRight: () => goInto(row), ArrowLeft: () => goOut(row),
    Enter: () => (row.module ? toggle(row.module) : moveTo(tree.at)),
    " ": () => (row.module ? toggle(row.module) : moveTo(tree.at)),
  }[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
}

// Opens the way to a layer, whatever the filters hide, and selects it.
function reveal(layer) {
  tree.query = [];
  byId("find").value = "";
  if (!tree.shown.has(layers.state[layer])) byId(`state-${layers.state[layer]}`).click();
  const open = (node) => node.items.some((item) => {
    const here = typeof item === "number" ? item === layer : open(item);
    if (here) node.open = true;
    return here;
  });
  open(tree.top);
  refreshTree();
  moveTo(tree.rows.findIndex((row) => row.layer === layer));
  byId("tree").scrollIntoView({ block: "center" });
  byId("tree").focus({ preventScroll: true });
}

function setUpTree() {
  if (!layers.name.length) return byId("layers").remove();
  const counts = countStates(layers.state);
  tree.texts = layers.name.map((_, layer) => searchable(layer));
  tree.top = buildModules();
  openKept(tree.top, 150);
  tree.shown = new Set(DECIDED);
  [1, 3, 0, 2, 5, 4].filter((state) => counts[state]).forEach((state) => {
    const made = chip("", tree.shown.has(state), (now) => { tree.shown[now ? "add" : "delete"](state); refreshTree(); }, { id: `state-${state}` });
    made.append(glyph(state), `${STATES[state].word} ${counts[state].toLocaleString("en")}`);
    byId("states").append(made);
  });
  byId("only").hidden = !counts[KEPT];
  byId("only").addEventListener("click", showOnlyKept);
  const room = Math.max(4, layers.name.length + 1) * ROW;
  if (room < 540) byId("layers").style.setProperty("--room", `${room}px`);
  tree.space = el("div", { class: "space", role: "presentation" });
  byId("tree").append(tree.space);
  byId("tree").addEventListener("scroll", () => drawRows());
  byId("tree").addEventListener("keydown", treeKey);
  window.addEventListener("resize", () => drawRows());
  byId("find").addEventListener("input", () => {
    tree.query = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean);
    refreshTree();
  });
  byId("fold").addEventListener("click", () => foldAll(byId("fold").textContent === "Expand all"));
  byId("layers-hint").textContent = layers.complete
    ? "Arrow keys move and open, Enter selects. Followers move values only and take the type of what feeds them."
    : "This run has written no list of all layers; only the kept ones are here.";
  refreshTree();
  const first = counts[KEPT] ? KEPT : 0;
  moveTo(tree.rows.findIndex((row) => row.layer !== undefined && layers.state[row.layer] === first));
}

function showOnlyKept() {
  const only = byId("only").getAttribute("aria-pressed") !== "true";
  byId("only").setAttribute("aria-pressed", only);
  byId("only").textContent = only ? "All again" : "Only kept";
  tree.shown = new Set(only ? [KEPT] : DECIDED);
  document.querySelectorAll("#states .chip").forEach((made) => made.setAttribute("aria-pressed", tree.shown.has(Number(made.id.split("-")[1]))));
  if (only) openKept(tree.top, Infinity);
  refreshTree();
}

function foldAll(open) {
  const set = (node) => { node.open = open; node.items.filter((item) => typeof item !== "number").forEach(set); };
  set(tree.top);
  byId("fold").textContent = open ? "Collapse all" : "Expand all";
  refreshTree();
}
