// The layers as a tree of modules, in network order.
const FLAT = 200; // a module with more layers of its own is cut into blocks
const BLOCK = 100;

function moduleNode(label, path) {
  return { label, path, modules: new Map(), items: [], counts: STATES.map(() => 0), open: false };
}

// A module and all around it, the outermost first: enc, enc.0, enc.0.norm; of scopes /enc.0, /enc.0/norm.
function modulesAround(module) {
  const ends = [...module.matchAll(module.includes("/") ? /\//g : /\./g)].map((mark) => mark.index);
  return [...ends, module.length].map((end) => module.slice(0, end)).filter((path) => /[^/]/.test(path));
}

function buildModules() {
  const top = moduleNode("", "");
  layers.name.forEach((name, layer) => {
    let node = top;
    node.counts[layers.state[layer]] += 1;
    for (const path of modulesAround(textAt(layers.module, layer))) {
      if (!node.modules.has(path)) {
        const made = moduleNode(path.slice(node.path.length).replace(/^[./]+/, ""), path);
        node.modules.set(path, made);
        node.items.push(made);
      }
      node = node.modules.get(path);
      node.counts[layers.state[layer]] += 1;
    }
    node.items.push(layer);
  });
  return cutIntoBlocks(compact(top));
}

// A module that holds nothing but one other is shown in one row with it.
function compact(node) {
  node.items = node.items.map((item) => {
    if (typeof item === "number") return item;
    let inner = item;
    while (inner.items.length === 1 && typeof inner.items[0] !== "number") {
      const only = inner.items[0];
      only.label = inner.label + only.path.slice(inner.path.length);
      inner = only;
    }
    return compact(inner);
  });
  return node;
}

function cutIntoBlocks(node) {
  node.items.filter((item) => typeof item !== "number").forEach(cutIntoBlocks);
  const own = node.items.filter((item) => typeof item === "number");
  if (own.length <= FLAT) return node;
  const blocks = new Map();
  const items = [];
  let place = 0;
  node.items.forEach((item) => {
    if (typeof item !== "number") return items.push(item);
    const which = Math.floor(place / BLOCK);
    if (!blocks.has(which)) {
      const last = Math.min(own.length, (which + 1) * BLOCK);
      blocks.set(which, moduleNode(`layers ${which * BLOCK + 1} to ${last}`, `${node.path}/#${which}`));
      items.push(blocks.get(which));
    }
    blocks.get(which).items.push(item);
    blocks.get(which).counts[layers.state[item]] += 1;
    place += 1;
  });
  node.items = items;
  return node;
}

// Opens modules with kept layers, or any where none is kept, while few rows are to be seen.
function openKept(top, most) {
  const open = (node) => {
    for (const item of node.items) {
      if (typeof item === "number" || (top.counts[KEPT] && !item.counts[KEPT])) continue;
      if (rows + item.items.length > most) return;
      item.open = true;
      rows += item.items.length;
      open(item);
    }
  };
  let rows = top.items.length;
  open(top);
}
