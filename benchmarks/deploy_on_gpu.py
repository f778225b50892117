"""What the plan to deploy is worth on a GPU: the fewest layers, it, and FP32 with TF32, timed.

    python benchmarks/deploy_on_gpu.py --out folder --models zoo-cache
    python benchmarks/deploy_on_gpu.py --out folder --source ../before --source . --repeats 2

Runs the command line on each network of `gpu_networks` that is named, with ONNX Runtime on CUDA,
as a process of its own; with several sources, checkouts of the tool, they take turns. Prints a
table in Markdown: milliseconds in turns with FP32 as the library runs it, errors as shares of the
limit, seconds of the run and of the plans that competed; then where the seconds of each went: of
phases by the log, and of builds by phase and case. Writes
`deploy.json` after each network, and keeps result and ledger of each run. Exit code 1
tells that a run failed, or had no plan to deploy. About 80 s for each of nafnet, det and rec on an
H100; `--limit-s` bounds each.
"""

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from gpu_job import run, timeline
from gpu_networks import NETWORKS, Source, prepare
from gpu_runs import FINISHED, machine

from precision_bisect.runs.ledger.ledger_reader import read_ledger
from precision_bisect.runs.results.speed_report import AS_FAST
from precision_bisect.runs.runfolder import LEDGER, RESULT
from precision_bisect.settings.targets import TF32
from precision_bisect.trial import Kind, Phase, Trial
from zoo.networks import ROOT

USUAL = ("nafnet", "det", "rec")
KEPT = (RESULT, LEDGER)
COLUMNS = (
    *("network", "FP32 ms", "fewest ms", "deploy ms", "speed-up", "FP32 error", "fewest error"),
    *("deploy error", "layers", "what", "competed", "contest s", "run s"),
)


def measure(name: str, source: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Run a checkout of the tool on a network; return what it found, and where its time went."""
    network = NETWORKS[name]
    prepared = prepare(name, Source(models=given.models.resolve()))
    folder = given.out.resolve() / f"{name}-{'-'.join(source.resolve().parts[-2:])}"
    shutil.rmtree(folder, ignore_errors=True)
    command = ["-m", "precision_bisect", str(prepared / "model.onnx")]
    command += ["--inputs", str(prepared / "judged"), "--backend", "onnxruntime"]
    command += [f"--{network.limit}", f"{network.bound:g}", "--out", str(folder / "run")]
    command += shlex.split(given.arguments)
    ended = run(command, folder, tool=source.resolve(), limit_s=given.limit_s)
    row: dict[str, Any] = {"network": name, "bound": network.bound, "wall_s": ended.wall_s}
    row["source"] = str(source)
    row |= {"exit": ended.code, "timed_out": ended.timed_out, "error": ""}
    if ended.code not in FINISHED:
        return row | {"error": ended.said}
    for file in KEPT:
        if (folder / "run" / file).exists():
            shutil.copyfile(folder / "run" / file, folder / file)
    result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    told = timeline(folder / "run" / "events.jsonl", ended.begun)
    shutil.rmtree(folder / "run")
    trials = read_ledger(folder / LEDGER).trials
    kept = ("status", "candidates", "builds", "evaluations", "latency_ms", "tf32", "deploy")
    competing = [
        trial
        for trial in trials
        if trial.proposal.phase is Phase.SPEED and trial.proposal.kind is Kind.REBUILD
    ]
    return {
        **row,
        **{key: result[key] for key in kept},
        "fewest": len(result["kept"]),
        "worst": result["error"],
        "competed": [_trial(trial) for trial in competing],
        "fp32": [_trial(t) for t in trials if t.proposal.case == TF32 and t not in competing],
        "contest_s": sum(trial.outcome.wall_s for trial in competing),
        "trials_s": sum(trial.outcome.wall_s for trial in trials),
        "timeline": asdict(told),
        "spent_s": _spent(trials),
        "after_s": None if told.last_trial_s is None else ended.wall_s - told.last_trial_s,
    }


def _spent(trials: Sequence[Trial]) -> dict[str, tuple[int, float]]:
    """Return the number and the seconds of trials by phase, kind and case."""
    spent: dict[str, tuple[int, float]] = {}
    for trial in trials:
        proposal = trial.proposal
        words = (str(proposal.phase), str(proposal.kind), proposal.case or "plain")
        count, seconds = spent.get("/".join(words), (0, 0.0))
        spent["/".join(words)] = count + 1, round(seconds + trial.outcome.wall_s, 2)
    return spent


def lines_of_phases(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of the seconds of each phase by network and source, builds beside them."""
    rows = [row for row in rows if "timeline" in row]
    phases = list(dict.fromkeys(phase for row in rows for phase in row["timeline"]["phases"]))
    head = ["network", "source", "run", "first trial", *phases, "after the last", "trials"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        told = row["timeline"]
        by_phase = [told["phases"].get(phase, 0.0) for phase in phases]
        parts = sorted(row["spent_s"].items(), key=lambda part: -part[1][1])
        spent = ", ".join(f"{what} {count}: {seconds:.1f}" for what, (count, seconds) in parts)
        times = (row["wall_s"], told["first_trial_s"], *by_phase, row["after_s"])
        cells = [row["network"], row["source"], *map(_cell, times), spent]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _trial(trial: Trial) -> dict[str, Any]:
    """Return what one plan came to."""
    outcome, latency = trial.outcome, trial.outcome.evidence.latency
    stability = outcome.evidence.stability
    errors = [outcome.error, None if stability is None else stability.error_max]
    return {
        "case": trial.proposal.case,
        "phase": str(trial.proposal.phase),
        "layers": len(trial.proposal.plan),
        "status": str(outcome.status),
        "verdict": None if outcome.verdict is None else str(outcome.verdict),
        "error": max((error for error in errors if error is not None), default=None),
        "message": outcome.message,
        "ms": None if latency is None else latency.median_ms,
        "fp32_ms": None if latency is None else latency.baseline_ms,
        "speedup": None if latency is None else latency.speedup,
        "method": None if latency is None else latency.method,
        "wall_s": outcome.wall_s,
    }


def row_of(row: Mapping[str, Any]) -> str:
    """Return a row of the table."""
    deploy, tf32 = row.get("deploy"), row.get("tf32") or {}
    if deploy is None or deploy["latency"] is None:
        return f"| {row['network']} | {row.get('status')} {row['error']} |"
    latency, bound = deploy["latency"], row["bound"]
    fewest: Mapping[str, Any] = {"ms": row["latency_ms"]["kept"], "error": row["worst"]}
    if deploy["tf32"]:
        # The answer with TF32, which it was not searched with.
        fewest = row["competed"][0]
    wins = latency["speedup"] is not None and latency["speedup"] < 1 + AS_FAST
    cells = (
        row["network"],
        latency["baseline_ms"],
        fewest.get("ms"),
        latency["median_ms"],
        latency["speedup"],
        *(None if e is None else e / bound for e in (tf32.get("fp32_error"), fewest.get("error"))),
        None if deploy["error"] is None else deploy["error"] / bound,
        f"{row['fewest']}, {len(deploy['kept'])} of {row['candidates']}",
        f"{'FP32' if wins else 'the plan'}{', TF32' if deploy['tf32'] else ''}",
        len(row["competed"]),
        row["contest_s"],
        row["wall_s"],
    )
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(USUAL))
    parser.add_argument("--models", type=Path, default=Path("zoo-cache"))
    parser.add_argument(
        "--source", type=Path, action="append", help="checkout of the tool (this one)"
    )
    parser.add_argument("--repeats", type=int, default=1, help="runs of each network and source")
    parser.add_argument("--arguments", default="", help="further ones: '--tf32 off'")
    parser.add_argument("--limit-s", type=float, default=150.0, help="on each run")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(argv)
    given.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    runs = product(given.networks, range(given.repeats), given.source or [ROOT])
    for name, _, source in runs:
        rows.append(measure(name, source, given))
        figures = {"machine": machine(), "rows": rows}
        (given.out / "deploy.json").write_text(json.dumps(figures, indent=1) + "\n")
        print(row_of(rows[-1]), flush=True)
    print("\n".join(lines_of_phases(rows)), flush=True)
    for row in rows:
        for plan in row.get("competed", ()):
            print(row["network"], json.dumps(plan), flush=True)
    return int(any(not (row.get("deploy") or {}).get("latency") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
