"""The rows of `gpu_runs` as a table of Markdown."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def table(rows: Sequence[Row]) -> str:
    """Return the table, and below it what went wrong."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(cell(row) for cell in COLUMNS.values())} |" for row in rows]
    for row in rows:
        for key in ("error", "not_judged"):
            if row.get(key):
                lines += ["", f"{row['network']}, {row['label']}, {key}: {row[key]}"]
    return "\n".join(lines)


def _plain(key: str) -> Callable[[Row], str]:
    return lambda row: _shown(row.get(key))


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _wall(row: Row) -> str:
    late = "> " if row.get("timed_out") else ""
    return late + _shown(row.get("wall_s"))


def _kept(row: Row) -> str:
    return f"{row['kept']} of {row['candidates']}" if "kept" in row else "-"


def _trials(key: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        return f"{row[key]}, {row[f'{key}_s']:.0f} s" if key in row else "-"

    return cell


def _gpu(row: Row) -> str:
    most = row.get("gpu_mb")
    return "-" if most is None else f"{most / 1e3:.1f}"


def _host(row: Row) -> str:
    if "host_mb" not in row:
        return "-"
    return f"{row['host_mb'] / 1e3:.1f}, {row['host_mb'] / row['model_mb']:.1f} x model"


def _judged(kind: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        found = (row.get("judged") or {}).get(kind)
        if not found or not found["count"]:
            return "-"
        return f"{found['over']} of {found['count']}, worst {_shown(found['worst'])}"

    return cell


def _deployed(name: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        found = (row.get("judged") or {}).get("latency_ms", {}).get(name)
        return f"{found['median']:.2f} ± {found['spread'] / 2:.2f}" if found else "-"

    return cell


def _in_the_run(row: Row) -> str:
    found = row.get("latency_ms") or {}
    times = [found.get(key) for key in ("all_high", "all_low", "kept")]
    return ", ".join(map(_shown, times)) if found else "-"


def _with_tf32(row: Row) -> str:
    found = row.get("tf32") or {}
    if not found.get("fp32_ms"):
        return "-"
    return f"{_shown(found['fp32_error'])}, {found['fp32_ms']:.3g} ms; {found['speedup']:.3g}"


COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "network": _plain("network"),
    "label": _plain("label"),
    "limit": _plain("bound"),
    "status": _plain("status"),
    "kept": _kept,
    "wall, s": _wall,
    "first trial after, s": _plain("first_trial_s"),
    "after last trial, s": _plain("after_last_trial_s"),
    "builds": _trials("builds"),
    "forecasts": _trials("forecasts"),
    "GPU, GB": _gpu,
    "host, GB": _host,
    "samples over": _judged("samples"),
    "copies over": _judged("copies"),
    "fresh over": _judged("fresh"),
    "ms in the run: all high, all low, kept": _in_the_run,
    "FP32 with TF32: error, ms; the answer, times as fast": _with_tf32,
    "ms deployed: FP32": _deployed("fp32"),
    "answer": _deployed("answer"),
    "answer as recommended": _deployed("recommended"),
}
"""Each column's cell; the last ones are by the library's options with TF32 off."""
