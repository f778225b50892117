// The curve: the error by the number of kept layers, each point a plan that was evaluated; and the culprits.
const POINT_NAMES = { all_low: "all low" };
const nameOfPoint = (point) => POINT_NAMES[point.point] ?? point.point;
const figured = (points, key) => points.filter((point) => point[key] !== null);

function curveTip(point) {
  const title = nameOfPoint(point) || "A point between";
  const copies = `median of copies ${spell(point.error_median)}, worst ${spell(point.error_max)}`;
  return [title, `${plural(point.kept_count, "layer")} kept`, copies, timesTolerance(point.error_max), point.latency_ms !== null && `${spell(point.latency_ms)} ms`];
}

function curveLine(name, key, scale, dashed) {
  const line = { color: colour("low"), width: dashed ? 1.5 : 2, type: dashed ? "dashed" : "solid" };
  return {
    name, type: "line", symbol: "circle", symbolSize: 6, lineStyle: line, itemStyle: { color: colour(dashed ? "card" : "low"), borderColor: colour("low"), borderWidth: 1.5 },
    data: figured(data.curve.points, key).map((point) => ({ value: [sizePlace(point.kept_count), scale.place(point[key])], point })),
  };
}

// Labels stand where the falling curve is not: above a point and to the right, or below it and to the left.
function namedPoints(scale, most) {
  const named = figured(data.curve.points, "error_median").filter((point) => point.point);
  return {
    name: "named", type: "scatter", symbol: "diamond", symbolSize: 13, itemStyle: { color: colour("kept") }, z: 4, labelLayout: { moveOverlap: "shiftY" },
    data: named.map((point) => {
      const last = sizePlace(point.kept_count) > 0.8 * sizePlace(most);
      const label = { show: true, position: last ? "bottom" : "top", align: last ? "right" : "left", distance: 6, color: colour("ink"), fontSize: 12, backgroundColor: colour("card"), padding: [1, 3], formatter: () => `${nameOfPoint(point)}: ${point.kept_count}` };
      return { value: [sizePlace(point.kept_count), scale.place(point.error_median)], point, label };
    }),
  };
}

function curveOptions() {
  const { points } = data.curve;
  const scale = errorScale(points.flatMap((point) => [point.error_median, point.error_max]).filter((error) => error !== null));
  const sized = points.map((point) => ({ kept: point.kept_count }));
  const most = Math.max(...sized.map((point) => point.kept));
  const median = { ...curveLine("median of copies", "error_median", scale, false), markLine: toleranceLine(scale, "insideStartBottom") };
  const worst = curveLine("worst", "error_max", scale, true);
  return {
    ...plain(), legend: { ...plain().legend, itemWidth: 26, top: 0, right: 8, data: [median.name, worst.name] }, tooltip: tooltip(({ data: { point } }) => curveTip(point)),
    grid: { ...FRAME, top: 30, bottom: 42 }, xAxis: sizeAxis(sized), yAxis: scale.axis, series: [worst, median, namedPoints(scale, most), deployed(scale, most)],
  };
}

function labelled(text, position, align) {
  return { show: true, position, align, distance: 6, color: colour("ink"), fontSize: 12, backgroundColor: colour("card"), padding: [1, 3], formatter: () => text };
}

// The plan to deploy need not hold the plans of the curve: it stands beside the line.
function deployed(scale, most) {
  const { deploy } = data.curve;
  const marks = deploy ? [{ value: [sizePlace(deploy.kept_count), scale.place(deploy.error)], deploy }] : [];
  return { name: "deployed", type: "scatter", symbol: "rect", symbolSize: 11, itemStyle: { color: colour("pass") }, z: 5, label: labelled(deploy && `${deploy.name}: ${deploy.kept_count}`, "top", deploy && sizePlace(deploy.kept_count) > 0.5 * sizePlace(most) ? "right" : "left"), data: marks };
}

function timeOptions() {
  const { unit, plans } = data.curve.times;
  const scale = errorScale(plans.map((plan) => plan.error));
  const points = plans.map((plan, place) => ({ value: [plan.time, scale.place(plan.error)], plan, label: labelled(plan.name, plan.chosen ? "bottom" : "top", place < plans.length / 2 ? "left" : "right") }));
  const x = axis(unit);
  return {
    ...plain(), tooltip: tooltip(({ data: { plan } }) => [plan.name, `error ${spell(plan.error)}`, `${spell(plan.time)} ${unit}`]), grid: { ...FRAME, top: 30, right: 60, bottom: 42 },
    xAxis: { ...x, type: "value", scale: true }, yAxis: scale.axis,
    series: [{ type: "scatter", symbol: "diamond", symbolSize: 13, itemStyle: { color: colour("low") }, labelLayout: { moveOverlap: "shiftY" }, markLine: toleranceLine(scale, "insideStartTop"), data: points }],
  };
}

function timeTable(plans) {
  return table(["Plan", "Error", `Time, ${data.curve.times.unit}`], plans, (plan) => [plan.name, spell(plan.error), spell(plan.time)]);
}

function curveTable(points) {
  const timed = points.some((point) => point.latency_ms !== null);
  return table(["Kept", "Median of copies", "Worst", ...(timed ? ["Latency"] : []), "Point"], points, (point) =>
    [String(point.kept_count), spell(point.error_median), spell(point.error_max), ...(timed ? [point.latency_ms === null ? "not measured" : `${spell(point.latency_ms)} ms`] : []), nameOfPoint(point)]);
}

function culpritTable(culprits) {
  return table(["Culprit", `Error without it${culprits.length > 1 ? ", the others kept" : ""}`, "Cause"], culprits, (each) => {
    const layer = layerByName.get(each.layer);
    return [layer === undefined ? each.layer : layerLink(layer, each.layer), spell(each.error_without), [each.cause, each.evidence].filter(Boolean).join(": ") || "not known"];
  }, 10);
}

function timeFigure(times) {
  const holder = el("div", { class: "chart" });
  const chart = makeChart(holder, `Error by time, ${plural(times.plans.length, "plan")}; the same figures are in the table below`);
  whenVisible(holder, () => chart.draw(timeOptions));
  return el("figure", {}, el("figcaption", {}, "Error by time, with FP32 as libraries run it"), holder);
}

function drawCurve() {
  const { points, culprits, words, times } = data.curve;
  if (!points.length) return byId("curve").remove();
  const holder = el("div", { class: "chart" });
  const chart = makeChart(holder, `Error by the number of kept layers, ${plural(points.length, "plan")}; the same figures are in the table below`);
  whenVisible(holder, () => chart.draw(curveOptions));
  const more = (rows, title, made, kind = "") => (rows.length ? [el("details", { class: `trials ${kind}` }, el("summary", {}, `${title} as a table`), made(rows))] : []);
  byId("curves").append(
    el("p", { class: "hint" }, words),
    el("div", { class: "charts" }, el("figure", {}, el("figcaption", {}, "Error by the number of kept layers"), holder), times.plans.length ? timeFigure(times) : null),
    ...more(points, `The curve: ${plural(points.length, "plan")}`, curveTable),
    ...more(times.plans, `Error by time: ${plural(times.plans.length, "plan")}`, timeTable),
    ...more(culprits, plural(culprits.length, "culprit"), culpritTable, "culprits"));
}
