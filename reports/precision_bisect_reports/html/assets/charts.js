// What all charts share. They are drawn when they come into sight, and anew when colours change.
const drawn = [];

function makeChart(box, words) {
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", words);
  let chart = null;
  let options = null;
  const draw = (make) => {
    options = make;
    chart ??= echarts.init(box, null, { renderer: "canvas", devicePixelRatio: Math.max(2, window.devicePixelRatio) });
    chart.setOption({ ...make(), animation: false }, { notMerge: true });
    return chart;
  };
  // On paper a picture shrinks with its column; drawn anew in a box without a height it would be gone.
  const made = { draw, resize: () => matchMedia("print").matches || chart?.resize(), redraw: () => options && box.isConnected && draw(options) };
  drawn.push(made);
  new ResizeObserver(() => made.resize()).observe(box);
  return made;
}

whenThemed(() => drawn.forEach((chart) => chart.redraw()));

const waiting = new Map();
const sight = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => drawNow(entry.target)), { rootMargin: "400px" });

function whenVisible(box, draw) {
  waiting.set(box, draw);
  sight.observe(box);
}

function drawNow(box) {
  const draw = waiting.get(box);
  waiting.delete(box);
  sight.unobserve(box);
  if (draw && box.isConnected) draw();
}

window.addEventListener("beforeprint", () => [...waiting.keys()].forEach(drawNow));

function plain() {
  return { textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: colour("ink") }, legend: { textStyle: { color: colour("ink") }, itemWidth: 14, itemHeight: 10 } };
}

function axis(name) {
  return {
    name, nameLocation: "middle", nameGap: 26, nameTextStyle: { color: colour("soft") },
    axisLabel: { color: colour("soft"), hideOverlap: true }, axisLine: { show: true, onZero: false, lineStyle: { color: colour("line") } },
    axisTick: { lineStyle: { color: colour("line") } }, splitLine: { lineStyle: { color: colour("grid") } },
  };
}

// Lines are set as text in elements of ours: a name is never parsed as markup.
function tooltip(linesOf) {
  return {
    trigger: "item", confine: true, backgroundColor: colour("card"), borderColor: colour("line"), textStyle: { color: colour("ink"), fontSize: 12 },
    formatter: (point) => el("div", { class: "tip" }, linesOf(point).filter(Boolean).map((line, place) => el(place ? "span" : "b", {}, line))),
  };
}

// Errors on a logarithmic axis: zero has a line of its own at the foot, what is not finite at the top.
function errorScale(errors) {
  const limit = data.answer.tolerance;
  const finite = errors.map(number).filter((error) => error > 0 && Number.isFinite(error));
  const all = limit ? [...finite, limit] : finite;
  const low = Math.floor(Math.log10(Math.min(...all, 1)) - 0.01);
  const high = Math.ceil(Math.log10(Math.max(...all, Number.MIN_VALUE)) + 0.01);
  const [from, to] = all.length ? [Math.max(low, high - 12), high] : [-3, 1];
  const infinite = errors.some((error) => number(error) === Infinity) ? 1 : 0;
  const exact = errors.some((error) => number(error) === 0) ? 1 : 0;
  const placed = (error) => (error === 0 ? from - 1 : Math.max(from, Math.log10(Math.max(error, 10 ** from))));
  return {
    place: (error) => (number(error) === Infinity ? to + 1 : placed(number(error))),
    axis: { ...axis(exact ? "error (log), 0 at the foot" : "error (log)"), type: "value", min: from - exact, max: to + infinite, minInterval: 1, nameGap: 40, axisLabel: { color: colour("soft"), formatter: (power) => (power > to ? "∞" : power < from ? "0" : powerOfTen(power)) } },
    line: limit ? Math.log10(limit) : null,
  };
}

const powerOfTen = (power) => `1e${Math.round(power)}`;

// Where few layers are kept nothing is below the line: charts with these at the left have its label there.
function toleranceLine(scale, position = "insideEndBottom") {
  if (scale.line === null) return undefined;
  return {
    silent: true, symbol: "none", z: 0, lineStyle: { color: colour("ink"), type: "dashed", width: 1.5 },
    label: { position, color: colour("ink"), backgroundColor: colour("card"), padding: 2, formatter: () => `tolerance ${spell(data.answer.tolerance)}${data.searches.length > 1 ? " of the whole" : ""}` }, data: [{ yAxis: scale.line }],
  };
}

// Points by the thousand are drawn in one stroke.
const MANY = { large: true, largeThreshold: 1500 };

const VERDICTS = {
  pass: { word: "pass", symbol: "circle", size: 8, colour: "pass" },
  fail: { word: "fail", symbol: "path://M0 2 L2 0 L6 4 L10 0 L12 2 L8 6 L12 10 L10 12 L6 8 L2 12 L0 10 L4 6 Z", size: 9, colour: "fail" },
  none: { word: "no verdict", symbol: "triangle", size: 9, colour: "soft" },
};
const verdictOf = (text) => (text === "pass" || text === "fail" ? text : "none");
