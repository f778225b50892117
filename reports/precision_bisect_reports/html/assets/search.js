// The trials of each search: as it narrowed, error against size, error against latency, a table.
const FRAME = { left: 62, right: 16, outerBoundsMode: "none" }; // so that charts below each other align
const COSTLESS = ["ranking", "prediction", "explanation"]; // hidden at first: no plans of the search

function trialsOf(columns) {
  return columns.kept.map((kept, place) => ({
    number: place + 1, kept, error: columns.error[place], seconds: columns.seconds[place], latency: columns.latency[place],
    phase: textAt(columns.phase, place), verdict: textAt(columns.verdict, place), kind: textAt(columns.kind, place), reason: textAt(columns.reason, place),
  }));
}

function drawSearch(search, box) {
  const trials = trialsOf(search.trials);
  if (!trials.length) return box.append(el("p", { class: "hint" }, "No trial has ended yet."));
  const phases = [...new Set(trials.map((trial) => trial.phase))];
  const judged = phases.filter((phase) => !COSTLESS.includes(phase));
  const shown = new Set(judged.length ? judged : phases);
  const holder = el("div", { class: "charts" });
  const redraw = () => drawTrials(trials.filter((trial) => shown.has(trial.phase)), holder);
  const chips = phases.map((phase) => chip(`${phase} ${trials.filter((trial) => trial.phase === phase).length.toLocaleString("en")}`, shown.has(phase), (now) => { shown[now ? "add" : "delete"](phase); redraw(); }));
  if (search.title) box.append(el("h3", {}, search.title));
  box.append(el("div", { class: "chips", role: "group", "aria-label": "Phases shown" }, chips), holder);
  redraw();
}

function drawTrials(trials, holder) {
  const boxes = [["As it narrowed", "narrowed", narrowing], ["Error against layers kept", "sizes", sizes]];
  if (trials.some((trial) => trial.latency !== null)) boxes.push(["Error against latency", "latencies", latencies]);
  else if (ESTIMATED) boxes.push(["Error against estimated cost, nothing was timed", "costs", estimates]);
  holder.classList.toggle("three", boxes.length > 2);
  holder.replaceChildren(...boxes.map(([title, name, options]) => {
    const box = el("div", { class: `chart ${name}` });
    const chart = makeChart(box, `${title}: ${plural(trials.length, "trial")}; the same figures are in the tables below`);
    whenVisible(box, () => chart.draw(() => options(trials)));
    return el("figure", { class: name }, el("figcaption", {}, title), box);
  }), el("details", { class: "trials" }, el("summary", {}, `${plural(trials.length, "trial")} as a table`), trialTable(trials)), ...(front.length ? [frontTable()] : []));
}

function trialTable(trials) {
  return table(["Trial", "Phase", "What was tried", "Kept", "Error", "Verdict", "Seconds"], trials, (trial) =>
    [String(trial.number), trial.phase, trial.reason, String(trial.kept), spell(trial.error), trial.verdict.replaceAll("_", " "), spell(trial.seconds)], 50);
}

const tipOf = (trial) => [`Trial ${trial.number}: ${trial.reason}`, `${trial.phase}, ${trial.verdict.replaceAll("_", " ")}`, `${plural(trial.kept, "layer")} kept`, `error ${spell(trial.error)}`, trial.latency !== null && `${spell(trial.latency)} ms`];

// One series per verdict, each with its own shape; `at` gives a trial's place, or null for none.
function byVerdict(trials, at, extra = {}) {
  return Object.entries(VERDICTS).map(([key, look]) => ({
    ...extra, ...MANY, name: look.word, type: "scatter", symbol: look.symbol, symbolSize: look.size, itemStyle: { color: colour(look.colour), opacity: 0.9 },
    data: trials.filter((trial) => verdictOf(trial.verdict) === key && at(trial)).map((trial) => ({ value: at(trial), trial })),
  })).filter((series) => series.data.length);
}

function narrowing(trials) {
  const scale = errorScale(trials.map((trial) => trial.error));
  const place = new Map(trials.map((trial, index) => [trial, index + 1]));
  let least = Infinity;
  const best = [];
  trials.forEach((trial) => {
    if (trial.verdict === "pass" && trial.kind !== "predict" && trial.kept < least) least = trial.kept;
    if (Number.isFinite(least)) best.push([place.get(trial), sizePlace(least)]);
  });
  const errors = byVerdict(trials, (trial) => trial.error !== null && [place.get(trial), scale.place(trial.error)]);
  if (errors.length) errors[0].markLine = toleranceLine(scale);
  const second = { xAxisIndex: 1, yAxisIndex: 1 };
  const x = { ...axis(""), type: "value", min: 0, max: trials.length + 1, minInterval: 1 };
  const labels = { ...axis("").axisLabel, showMaxLabel: false };
  return {
    ...plain(), tooltip: tooltip((point) => (point.data.trial ? tipOf(point.data.trial) : ["smallest that passed"])),
    legend: { ...plain().legend, top: 0, right: 8 },
    grid: [{ ...FRAME, top: 30, height: "42%" }, { ...FRAME, bottom: 42, height: "30%" }],
    xAxis: [{ ...x, gridIndex: 0, axisLabel: { show: false } }, { ...x, ...axis("trial"), axisLabel: labels, gridIndex: 1 }],
    yAxis: [{ ...scale.axis, gridIndex: 0 }, { ...sizeAxis(trials, true), nameGap: 40, gridIndex: 1 }],
    series: [...errors, { ...second, name: "smallest that passed", type: "line", step: "end", symbol: "none", lineStyle: { color: colour("pass"), width: 2 }, itemStyle: { color: colour("pass") }, data: best },
      ...byVerdict(trials, (trial) => [place.get(trial), sizePlace(trial.kept)], second)],
  };
}

// Numbers of layers on an axis that shows 0 and 5,000: the logarithm of one more.
const sizePlace = (kept) => Math.log10(kept + 1);

function sizeAxis(trials, few = false) {
  const most = trials.reduce((sum, trial) => Math.max(sum, trial.kept), 1);
  const numbers = few && most > 60 ? [0, 3, 30, 300, 3000, 30000] : [0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000];
  const ticks = numbers.filter((tick) => tick <= most * 1.05).map(sizePlace);
  return {
    ...axis("layers kept (log)"), type: "value", min: 0, max: sizePlace(most) * 1.02, axisTick: { customValues: ticks, lineStyle: { color: colour("line") } },
    axisLabel: { color: colour("soft"), customValues: ticks, formatter: (place) => Math.round(10 ** place - 1).toLocaleString("en") }, splitLine: { show: false },
  };
}

function sizes(trials) {
  const scale = errorScale([...trials, ...front].map((each) => each.error));
  const series = byVerdict(trials, (trial) => trial.error !== null && [sizePlace(trial.kept), scale.place(trial.error)]);
  if (series.length) series[0].markLine = toleranceLine(scale, "insideStartBottom");
  series.push(...frontSeries((point) => [sizePlace(point.kept_count), scale.place(point.error)], false));
  return {
    ...plain(), tooltip: tooltip(({ data: point }) => (point.trial ? tipOf(point.trial) : frontTip(point.front))), legend: { ...plain().legend, top: 0, right: 8 },
    grid: { ...FRAME, top: 30, bottom: 42 }, xAxis: sizeAxis(trials), yAxis: scale.axis, series,
  };
}

function latencies(trials) {
  const timed = trials.filter((trial) => trial.latency !== null);
  const scale = errorScale([...timed, ...front].map((each) => each.error));
  const series = byVerdict(timed, (trial) => trial.error !== null && [trial.latency, scale.place(trial.error)]);
  if (series.length) series[0].markLine = toleranceLine(scale, "insideStartBottom");
  if (!ESTIMATED) series.push(...frontSeries((point) => [point.latency_ms, scale.place(point.error)], true));
  return {
    ...plain(), legend: { ...plain().legend, top: 0, right: 8 }, grid: { ...FRAME, top: 30, bottom: 42 },
    tooltip: tooltip(({ data: point }) => (point.trial ? tipOf(point.trial) : frontTip(point.front))),
    xAxis: { ...axis("latency, ms"), type: "value", scale: true }, yAxis: scale.axis, series,
  };
}

function drawSearches() {
  data.searches.forEach((search) => {
    const box = el("div", { class: "search" });
    byId("searches").append(box);
    drawSearch(search, box);
  });
}

function drawSensitivity() {
  const box = byId("sensitivities");
  const found = [...sensitivityByLayer.entries()];
  if (!found.length) return byId("sensitivity").remove();
  const chartBox = el("div", { class: "chart" });
  const chart = makeChart(chartBox, `Error of each layer when it runs low, ${plural(found.length, "layer")} in network order; the worst are in the table below`);
  box.append(el("p", { class: "hint" }, `The emulator's error where one layer runs ${data.low.toUpperCase()} and all others stay high. Errors add up, so a layer below the tolerance can be needed, and one above it need not be when others are kept. Click a point to see its layer.`),
    el("figure", {}, el("figcaption", {}, "Forecast error of each layer alone"), chartBox));
  whenVisible(chartBox, () => chart.draw(() => sensitivityOptions(found)).on("click", (point) => point.data.layer !== undefined && reveal(point.data.layer)));
  const worst = [...found].sort((one, two) => two[1].error - one[1].error || one[0] - two[0]).slice(0, 10);
  box.append(el("h3", {}, "The most sensitive"), table(["Layer", "Forecast error", "In the answer"], worst, ([layer, { error, together }]) =>
    [el("span", {}, layerLink(layer, nameOf(layer)), sameWord(layer) ? null : ` (${textAt(layers.op, layer)})`), `${spell(error)}${together > 1 ? `, with ${together - 1} others` : ""}`, STATES[layers.state[layer]].word]));
}

function sensitivityOptions(found) {
  const scale = errorScale(found.map(([, { error }]) => error));
  const groups = [["kept", [KEPT], "triangle", 10], ["low", [0], "circle", 5], ["other", [2, 3, 4, 5], "diamond", 6]];
  const series = groups.map(([name, states, symbol, symbolSize]) => ({
    name: name === "other" ? "not decided" : name, type: "scatter", ...MANY, symbol, symbolSize, itemStyle: { color: colour(name), opacity: 0.85 },
    data: found.filter(([layer]) => states.includes(layers.state[layer])).map(([layer, { error }]) => ({ value: [layer, scale.place(error)], layer, error })),
  })).filter((each) => each.data.length);
  series[0].markLine = toleranceLine(scale);
  return {
    ...plain(), legend: { ...plain().legend, top: 0, right: 8 }, grid: { ...FRAME, top: 30, bottom: 42 },
    tooltip: tooltip(({ data: point }) => [nameOf(point.layer), textAt(layers.op, point.layer), `error ${spell(point.error)}`]),
    xAxis: { ...axis("node, in network order"), type: "value", min: 0, max: layers.name.length, axisLabel: { ...axis("").axisLabel, showMaxLabel: false } }, yAxis: scale.axis, series,
  };
}
