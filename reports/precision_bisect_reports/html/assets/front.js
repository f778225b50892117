// The front: the plans that none beats in error and speed. Where nothing was timed, an estimated cost stands for speed.
const front = data.searches.length === 1 ? data.front.filter((point) => point.error !== null) : [];
const ESTIMATED = front.length > 0 && front[0].latency_ms === null;
const FRONT_NAME = ESTIMATED ? "front, estimated" : "front";
const costOf = (point) => `${spell(point.cost)} ms, estimated`;

// Filled and solid where engines were timed; hollow and dashed where the cost is an estimate.
function frontLook() {
  const line = { color: colour("low"), width: 2, type: ESTIMATED ? "dashed" : "solid" };
  return { name: FRONT_NAME, symbol: "diamond", symbolSize: 12, lineStyle: line, itemStyle: { color: colour(ESTIMATED ? "card" : "low"), borderColor: colour("low"), borderWidth: 2, opacity: 1 }, z: 1 };
}

const frontTip = (point) => ["On the front", `${plural(point.kept_count, "layer")} kept`, `error ${spell(point.error)}`, point.passed ? "pass" : "fail", ESTIMATED ? costOf(point) : `${spell(point.latency_ms)} ms`];

// `at` gives the place of a point. Only where speed is an axis is the front a line.
function frontSeries(at, line) {
  if (!front.length) return [];
  const data = front.map((point) => ({ value: at(point), front: point }));
  return [{ ...frontLook(), ...(line ? { type: "line", step: "end" } : { type: "scatter" }), data }];
}

// The unit in which the largest cost is a number of at least 1, with how many of it are a millisecond.
function unitOf(largest) {
  return [["ms", 1], ["µs", 1e3], ["ns", 1e6]].find(([, per]) => largest * per >= 1) ?? ["ps", 1e9];
}

function estimates() {
  const scale = errorScale(front.map((point) => point.error));
  const [unit, per] = unitOf(Math.max(...front.map((point) => point.cost)));
  const [series] = frontSeries((point) => [point.cost * per, scale.place(point.error)], true);
  const x = axis(`what keeping costs, ${unit}, estimated`);
  return {
    ...plain(), tooltip: tooltip(({ data: point }) => frontTip(point.front)), legend: { ...plain().legend, top: 0, right: 8 }, grid: { ...FRAME, top: 30, bottom: 42 },
    xAxis: { ...x, type: "value", scale: true, axisLabel: { ...x.axisLabel, showMaxLabel: false } }, yAxis: scale.axis, series: [{ ...series, markLine: toleranceLine(scale, "insideStartBottom") }],
  };
}

function frontTable() {
  const rows = table(["Kept", "Error", "Verdict", ESTIMATED ? "Cost" : "Latency", "Speed-up"], front, (point) =>
    [String(point.kept_count), spell(point.error), point.passed ? "pass" : "fail", ESTIMATED ? costOf(point) : `${spell(point.latency_ms)} ms`, point.speedup === null ? "not measured" : `${spell(point.speedup)} ×`]);
  return el("details", { class: "trials" }, el("summary", {}, `The front: ${plural(front.length, "plan")} as a table`), rows);
}
