"""What whole runs on a GPU take, and whether their answers hold where they are deployed.

    python benchmarks/gpu_runs.py --out gpu_runs.json
    python benchmarks/gpu_runs.py --out gpu_runs.json --label before --tool-path ../other-checkout
    python benchmarks/gpu_runs.py --out small.json --networks decoder --backend emulated --small

For each network: prepares model and samples, runs the command line as a process of its own, and
has another process judge the exported model (`gpu_judge`), where a GPU has run it. Writes a row
of `--out` after each network, in place of one of the same network and label, and prints all rows
as a table of Markdown. A network that fails does not end the others: its row has the last lines of
stderr. `--models` has PP-OCR (`ppocr_det/model.onnx`; else it is fetched) and MiniLM
(`minilm/minilm13.onnx`), and keeps what was prepared. Written text needs Pillow. Exit code 1 tells
that a run failed, or an answer could not be judged on the GPU that ran it.
"""

import argparse
import json
import os
import platform
import shlex
import shutil
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpu_job import gpu_query, run, timeline
from gpu_networks import NETWORKS, Source, prepare
from gpu_runs_table import table

from zoo.networks import ROOT, SkippedError

USUAL = ("nafnet", "det", "rec", "decoder", "unet")
PACKAGES = ("precision-bisect", "numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "polygraphy")
FINISHED = (0, 1, 3)
"""Exit codes of runs that ended with a result."""


def machine() -> dict[str, Any]:
    """Return what the figures are measured on."""
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text(encoding="utf-8").splitlines() if cpus.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "gpus": gpu_query("name", "driver_version", "memory.total") or [],
        "cpu": f"{os.cpu_count()} x {names[0] if names else platform.processor()}",
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def measure(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Prepare a network, run the tool on it, judge the answer; return the row without its label.

    Raises SkippedError.
    """
    network = NETWORKS[name]
    source = Source(models=asked.models.resolve(), small=asked.small, fresh=asked.fresh)
    prepared = prepare(name, source)
    weights = sum(path.stat().st_size for path in prepared.glob("model.onnx*")) / 1e6
    folder = asked.runs.resolve() / f"{name}-{asked.label}"
    shutil.rmtree(folder, ignore_errors=True)
    command = ["-m", "precision_bisect", str(prepared / "model.onnx")]
    command += ["--inputs", str(prepared / "judged"), "--backend", asked.backend]
    command += [f"--{network.limit}", f"{network.bound:g}", "--out", str(folder / "run")]
    command += ["--overwrite", *shlex.split(asked.arguments)]
    ended = run(command, folder, tool=asked.tool_path.resolve(), limit_s=asked.limit_s)
    told = timeline(folder / "run" / "events.jsonl", ended.begun)
    after = None if told.last_trial_s is None else round(ended.wall_s - told.last_trial_s, 1)
    row = {
        "limit": network.limit,
        "bound": network.bound,
        "command": shlex.join(["python", *command]),
        "exit": ended.code,
        "timed_out": ended.timed_out,
        "wall_s": ended.wall_s,
        "after_last_trial_s": after,
        **asdict(told),
        "model_mb": round(weights, 1),
        "host_mb": ended.host_mb,
        "gpu_mb": ended.gpu_mb,
        **_figures(folder / "run" / "result.json"),
        "judged": None,
        "not_judged": "",
        "error": "" if ended.code in FINISHED else ended.said,
    }
    return row | _judged(prepared, folder, network, asked)


def _figures(path: Path) -> dict[str, Any]:
    """Return what the run's result says; "none" as its status where there is none."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"status": "none"}
    kept = ("status", "candidates", "trials", "evaluations", "latency_ms", "latency_method")
    return {
        **{key: result[key] for key in kept},
        "engine_builds": result["builds"],
        "kept": len(result["kept"]),
        "worst": result["error"],
        "minimal": (result["certificate"] or {}).get("minimal"),
        "stability": result["stability"],
        "tf32": result.get("tf32"),
        "recheck": (result["deployment"] or {}).get("recheck"),
        "versions": result["fingerprint"]["versions"],
    }


def _judged(
    prepared: Path, folder: Path, network: Any, asked: argparse.Namespace
) -> dict[str, Any]:
    """Return what the judge found, or why there is nothing."""
    if asked.backend == "emulated":
        return {"not_judged": "the emulator predicts, and no GPU was used"}
    if not (folder / "run" / "model.mixed.onnx").exists():
        return {"not_judged": "the run exported no model.mixed.onnx"}
    out = folder / "judged.json"
    out.unlink(missing_ok=True)
    command = [str(Path(__file__).with_name("gpu_judge.py")), str(prepared), str(folder / "run")]
    command += ["--limit", network.limit, "--bound", f"{network.bound:g}"]
    command += ["--copies", str(asked.copies), "--out", str(out)]
    ended = run(command, folder / "judge", tool=asked.tool_path.resolve(), limit_s=asked.limit_s)
    if out.exists():
        return {"judged": json.loads(out.read_text())}
    return {"not_judged": ended.said or f"exit {ended.code}"}


def keep(row: dict[str, Any], out: Path) -> list[dict[str, Any]]:
    """Write a row, in place of one of the same network and label; return all rows."""
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"] if out.exists() else []
    same = (row["network"], row["label"])
    rows = [each for each in rows if (each["network"], each["label"]) != same]
    rows = sorted([*rows, row], key=lambda each: list(NETWORKS).index(each["network"]))
    making = out.with_name(f"{out.name}.making")
    making.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    making.replace(out)
    return rows


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(USUAL))
    parser.add_argument("--label", default="today", help="what the rows are called")
    parser.add_argument("--tool-path", type=Path, default=ROOT, help="checkout of the tool")
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--arguments", default="", help="further ones: '--max-time 2m'")
    parser.add_argument("--models", type=Path, default=Path("zoo-cache"))
    parser.add_argument("--runs", type=Path, default=Path("zoo-cache/gpu_runs/runs"))
    parser.add_argument("--fresh", type=int, default=10, help="samples that no run has seen")
    parser.add_argument("--copies", type=int, default=16)
    parser.add_argument("--small", action="store_true", help="small models and few samples")
    parser.add_argument(
        "--limit-s", type=float, default=400.0, help="on each run, and on each judgement"
    )
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; return the exit code."""
    asked = parse(argv)
    told = sys.argv[1:] if argv is None else argv
    common = {
        "label": asked.label,
        "benchmark": shlex.join(["python", "benchmarks/gpu_runs.py", *told]),
        "machine": machine(),
    }
    failed = False
    rows: list[dict[str, Any]] = []
    for name in asked.networks:
        try:
            found = measure(name, asked)
        except SkippedError as reason:
            found = {"status": "skipped", "error": str(reason)}
        except Exception as error:  # the other networks are worth their time all the same
            traceback.print_exc()
            found = {"status": "broken", "error": f"{type(error).__name__}: {error}"}
        unjudged = asked.backend != "emulated" and found.get("judged") is None
        failed |= bool(found["error"]) or unjudged
        rows = keep({"network": name, **common, **found}, asked.out)
        print(table([row for row in rows if row["network"] == name]), flush=True)
    print(table(rows))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
