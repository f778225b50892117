"""What the plan to deploy is worth on a GPU: the fewest layers, it, and FP32 with TF32, timed.

    python benchmarks/deploy_on_gpu.py --out folder --models zoo-cache

Runs the command line on each network of `gpu_networks` that is named, with ONNX Runtime on CUDA,
as a process of its own. Prints a table in Markdown: milliseconds in turns with FP32 as the library
runs it, errors as shares of the limit, seconds of the run and of the plans that competed. Writes
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
from pathlib import Path
from typing import Any

from gpu_job import run
from gpu_networks import NETWORKS, Source, prepare
from gpu_runs import FINISHED, machine

from precision_bisect.pipeline.fastest import AS_FAST
from precision_bisect.runs.ledger.ledger_reader import read_ledger
from precision_bisect.runs.runfolder import LEDGER, RESULT
from precision_bisect.trial import Kind, Phase, Trial
from zoo.networks import ROOT

USUAL = ("nafnet", "det", "rec")
KEPT = (RESULT, LEDGER)
COLUMNS = (
    *("network", "FP32 ms", "fewest ms", "deploy ms", "speed-up", "FP32 error", "fewest error"),
    *("deploy error", "layers", "what", "competed", "contest s", "run s"),
)


def measure(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run the tool on a network; return what it found, and each plan that competed."""
    network = NETWORKS[name]
    prepared = prepare(name, Source(models=given.models.resolve()))
    folder = given.out.resolve() / name
    shutil.rmtree(folder, ignore_errors=True)
    command = ["-m", "precision_bisect", str(prepared / "model.onnx")]
    command += ["--inputs", str(prepared / "judged"), "--backend", "onnxruntime"]
    command += [f"--{network.limit}", f"{network.bound:g}", "--out", str(folder / "run")]
    command += shlex.split(given.arguments)
    ended = run(command, folder, tool=given.tool_path.resolve(), limit_s=given.limit_s)
    row: dict[str, Any] = {"network": name, "bound": network.bound, "wall_s": ended.wall_s}
    row |= {"exit": ended.code, "timed_out": ended.timed_out, "error": ""}
    if ended.code not in FINISHED:
        return row | {"error": ended.said}
    for file in KEPT:
        if (folder / "run" / file).exists():
            shutil.copyfile(folder / "run" / file, folder / file)
    result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
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
        "fp32": [_trial(t) for t in trials if t.proposal.case and t not in competing],
        "contest_s": sum(trial.outcome.wall_s for trial in competing),
        "trials_s": sum(trial.outcome.wall_s for trial in trials),
    }


def _trial(trial: Trial) -> dict[str, Any]:
    """Return what one plan came to."""
    outcome, latency = trial.outcome, trial.outcome.evidence.latency
    stability = outcome.evidence.stability
    errors = [outcome.error, None if stability is None else stability.error_max]
    return {
        "case": trial.proposal.case,
        "phase": str(trial.proposal.phase),
        "layers": len(trial.proposal.plan),
        "plan": list(trial.proposal.plan.indices),
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
    parser.add_argument("--tool-path", type=Path, default=ROOT, help="checkout of the tool")
    parser.add_argument("--arguments", default="", help="further ones: '--tf32 off'")
    parser.add_argument("--limit-s", type=float, default=150.0, help="on each run")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(argv)
    given.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    for name in given.networks:
        rows.append(measure(name, given))
        figures = {"machine": machine(), "rows": rows}
        (given.out / "deploy.json").write_text(json.dumps(figures, indent=1) + "\n")
        print(row_of(rows[-1]), flush=True)
    for row in rows:
        for plan in row.get("competed", ()):
            shown = {key: plan[key] for key in plan if key != "plan"}
            print(row["network"], json.dumps(shown), flush=True)
    return int(any(not (row.get("deploy") or {}).get("latency") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
