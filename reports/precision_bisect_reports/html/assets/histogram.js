// Magnitudes of values by powers of two, against what a type can hold; for 8-bit types in multiples
// of their scale.
const PARTS = [["inputs", "low"], ["outputs", "kept"], ["weights", "fixed"]];
const RANGES = {
  fp16: [[16, "65504"], [-14, "2⁻¹⁴"], [-24, "2⁻²⁴"]],
  bf16: [[128, "3.4e38"], [-126, "2⁻¹²⁶"]],
  int8: [[Math.log2(127), "127"], [-1, "½"]],
  fp8: [[Math.log2(448), "448"], [-6, "2⁻⁶"], [-9, "2⁻⁹"]],
};

function drawHistogram(box, histogram, low) {
  const lowest = histogram.lowest_exponent;
  const parts = PARTS.filter(([part]) => (histogram.counts[part] ?? []).some(Boolean));
  const limits = RANGES[low] ?? [];
  const ends = parts.flatMap(([part]) => [lowest, lowest + histogram.counts[part].length]);
  const from = Math.floor(Math.min(...ends, ...limits.map(([at]) => at))) - 1;
  const to = Math.ceil(Math.max(...ends, ...limits.map(([at]) => at))) + 1;
  const chart = makeChart(box, `Values by magnitude, from 2^${from} to 2^${to}, with the range of ${low.toUpperCase()}`);
  whenVisible(box, () => chart.draw(() => ({
    ...plain(),
    grid: { left: 8, right: 12, top: 44, bottom: 34, containLabel: true },
    legend: { ...plain().legend, data: parts.map(([part]) => part), top: 0, left: 0 },
    xAxis: { ...axis(histogram.scaled ? "magnitude over scale, as a power of two" : "magnitude, as a power of two"), type: "value", min: from, max: to, minInterval: 4 },
    yAxis: { ...axis(""), type: "value", show: false },
    tooltip: tooltip((point) => [`2^${point.value[0] - 0.5} to 2^${point.value[0] + 0.5}`, `${point.seriesName}: ${share(histogram.counts[point.seriesName], point.value[2])}`]),
    series: parts.map(([part, name], place) => ({
      name: part, type: "bar", barGap: "-100%", barCategoryGap: "0%", barWidth: Math.max(2, Math.floor((box.clientWidth - 30) / (to - from)) - 1),
      itemStyle: { color: colour(name), opacity: 0.62 },
      // The square root keeps rare values, which are the ones that overflow, in sight.
      data: histogram.counts[part].map((count, bin) => [lowest + bin + 0.5, Math.sqrt(count / total(histogram.counts[part])), count]).filter((bar) => bar[2]),
      markLine: place ? undefined : rangeLines(limits),
    })),
  })));
}

const total = (counts) => counts.reduce((sum, count) => sum + count, 0) || 1;
const share = (counts, count) => `${count.toLocaleString("en")} values, ${spell((100 * count) / total(counts))} %`;

function rangeLines(limits) {
  return {
    silent: true, symbol: "none", lineStyle: { color: colour("fail"), type: "dashed" },
    label: { color: colour("ink"), fontSize: 10, formatter: (line) => line.name },
    data: limits.map(([at, name]) => ({ xAxis: at, name })),
  };
}
