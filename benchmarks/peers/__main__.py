"""Run each tool on each network in a process of its own, and judge what it wrote.

    cd benchmarks
    python autocast_env.py
    python -m peers --out results/peers.json
    python -m peers --networks nafnet magika --tools AutoCast --out results/peers.json
    python -m peers --samples 16 --networks pitch --out results/peers.json

It needs the groups `models` and `benchmarks`. The tools get the zoo's judging samples, or
`--samples` drawn alike; the zoo's evaluator, which shares no code with any of them, judges on
copies of these and on 64 fresh ones (the example has 14). Rows of other networks, samples and
tools in `--out` stay; the tables come beside it.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from peers.table import markdown, merged
from peers.tools import TOOLS, FailedError, Job
from precision_bisect.graphs.load import load_model
from zoo.judge import COPIES, Sample, judge, load
from zoo.networks import NETWORKS, SEEDS, SkippedError, prepare, save

FRESH, FRESH_SEED = 64, 3
ANSWER = "answer.json"
DEPLOYED, WITHOUT_TF32 = "gpu_deployed.json", "gpu_fronts.json"
"""What `gpu_fronts.py measure` wrote, beside the figures here, and before it had TF32 on."""
_FLOAT = onnx.TensorProto.FLOAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """What a tool's process took, in seconds, and why it gave nothing, "" where it did."""

    cpu_s: float
    wall_s: float
    failed: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    given = parse(argv)
    if given.child:
        return child(given.child, Path(given.out))
    document = json.loads(given.out.read_text()) if given.out.exists() else {"rows": []}
    for name in given.networks:
        try:
            folder = prepare(name, given.cache.resolve())
        except SkippedError as reason:
            print(f"{name}: skipped, {reason}", flush=True)
            continue
        inputs = samples_of(name, folder, given.samples)
        count = len(load(folder / inputs))
        for bound in given.limits or NETWORKS[name].limits[:1]:
            done = {
                (row["network"], row["bound"], row["samples"], row["tool"].partition(":")[0])
                for row in document["rows"]
            }
            for tool in given.tools:
                if given.resume and (name, bound, count, tool) in done:
                    continue
                rows = measure(
                    tool, name, folder, inputs, bound, given.cache / "peers", given.limit_s
                )
                for row in rows:
                    row["samples"] = count
                    print(json.dumps(row), flush=True)
                document["rows"] = merged(document["rows"], rows, list(NETWORKS), list(TOOLS))
                given.out.write_text(written(document["rows"]))
                write_tables(document["rows"], given.out.with_suffix(".md"))
    return 0


def write_tables(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the tables, with the latencies on a GPU that lie beside them."""
    figures, fronts = (
        json.loads(measured.read_text()) if measured.exists() else None
        for measured in map(path.with_name, (DEPLOYED, WITHOUT_TF32))
    )
    path.write_text(markdown(rows, figures, (fronts or {}).get("rows", ())))


def written(rows: Sequence[Any]) -> str:
    """Return the file, a line for each row."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    return f'{{"rows": [\n{lines}\n]}}\n'


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="peers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--limits", nargs="+", type=float, help="instead of each network's first")
    parser.add_argument("--samples", type=int, help="for the tools (the zoo's own number)")
    parser.add_argument("--limit-s", type=float, default=600.0, help="seconds for each tool")
    parser.add_argument("--cache", type=Path, default=Path("zoo-cache"), help="prepared networks")
    parser.add_argument("--out", type=Path, default=Path("results/peers.json"))
    parser.add_argument("--resume", action="store_true", help="skip what --out has")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def child(tool: str, out: Path) -> int:
    """Run one tool; its job lies in the folder, and its answer will."""
    told = json.loads((out / "job.json").read_text())
    job = Job(**told | {"folder": Path(told["folder"]), "out": out})
    answer: dict[str, Any]
    try:
        found = TOOLS[tool](job)
    except FailedError as error:
        answer = {"failed": str(error)}
    except Exception as error:
        answer = {"failed": f"{type(error).__name__}: {error}"[:300]}
    else:
        models = {name: str(path) for name, path in found.models.items()}
        answer = {"failed": "", "models": models, "evaluations": found.evaluations}
    (out / ANSWER).write_text(json.dumps(answer))
    return 0


def measure(
    tool: str, name: str, folder: Path, inputs: str, bound: float, work: Path, limit_s: float
) -> list[dict[str, Any]]:
    """Run a tool on a network, and judge each model that it wrote."""
    limit = NETWORKS[name].limit
    job = Job(folder=folder, inputs=inputs, limit=limit, bound=bound, out=work)
    took, answer = answered(tool, name, job, limit_s)
    shared = {"network": name, "limit": limit, "bound": bound}
    if took.failed:
        return [{**shared, "tool": tool, **asdict(took)}]
    return [
        {
            **shared,
            "tool": f"{tool}: {point}" if point else tool,
            **asdict(took),
            "evaluations": answer["evaluations"],
            **counted(folder / "model.onnx", Path(path)),
            **judged(name, folder, inputs, Path(path), bound),
        }
        for point, path in answer["models"].items()
    ]


def answered(tool: str, name: str, job: Job, limit_s: float) -> tuple[Took, dict[str, Any]]:
    """Run a tool on a network below the job's `out`; return its answer, {} where it has none."""
    out = answer_folder(tool, name, job)
    out.mkdir(parents=True, exist_ok=True)
    (out / ANSWER).unlink(missing_ok=True)
    fields = {"inputs": job.inputs, "limit": job.limit, "bound": job.bound}
    (out / "job.json").write_text(json.dumps({"folder": str(job.folder), **fields}))
    took = run(tool, out, limit_s)
    if took.failed:
        return took, {}
    answer = json.loads((out / ANSWER).read_text())
    return replace(took, failed=answer["failed"]), answer


def answer_folder(tool: str, name: str, job: Job) -> Path:
    """Return the folder of a tool's answer."""
    folder = "".join(c if c.isalnum() else "-" for c in tool)
    return (job.out / f"{name}-{job.bound:g}" / folder).resolve()


def run(tool: str, out: Path, limit_s: float) -> Took:
    """Run a tool in a process of its own; `os.wait4` tells its CPU time, its children's too."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "peers", "--child", tool, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=(out / "stderr").open("w"),
        start_new_session=True,
    )
    used = None
    while used is None and time.perf_counter() - begun < limit_s:
        done, _, usage = os.wait4(process.pid, os.WNOHANG)
        used = usage if done else None
        time.sleep(0.02)
    wall = round(time.perf_counter() - begun, 2)
    if used is None:
        os.killpg(process.pid, 9)
        _, _, used = os.wait4(process.pid, 0)
        failed = f"stopped after {limit_s:g} s"
    else:
        failed = "" if (out / ANSWER).exists() else "its process ended without an answer"
    return Took(cpu_s=round(used.ru_utime + used.ru_stime, 2), wall_s=wall, failed=failed)


def counted(original: Path, mixed: Path) -> dict[str, Any]:
    """Return how many candidates store FP32 in a mixed model, and its Casts beyond the file's."""
    table = load_model(original).table
    graph = onnx.shape_inference.infer_shapes(onnx.load(mixed)).graph
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*graph.value_info, *graph.output)
    }
    by_name = {node.name: node for node in graph.node}
    casts = sum(node.op_type == "Cast" for node in graph.node)
    before = sum(node.op_type == "Cast" for node in onnx.load(original).graph.node)
    found = [by_name[name] for name in table.names if name in by_name]
    return {
        "kept": sum(any(types.get(name) == _FLOAT for name in node.output) for node in found),
        "gone": len(table.names) - len(found),
        "candidates": len(table.names),
        "casts": casts - before,
    }


def judged(name: str, folder: Path, inputs: str, mixed: Path, bound: float) -> dict[str, Any]:
    """Judge a mixed model on copies and on fresh samples; what cannot run is told."""
    try:
        found = judge(
            folder / "model.onnx",
            mixed,
            judged=load(folder / inputs),
            fresh=fresh(name, folder),
            limit=NETWORKS[name].limit,
            bound=bound,
            copies=COPIES,
        )
    except Exception as error:  # Whatever ONNX or ONNX Runtime says of another tool's model.
        return {"failed": f"{type(error).__name__}: {error}"[:300]}
    return {
        key: str(value) if isinstance(value, float) and math.isinf(value) else value
        for key, value in asdict(found).items()
    }


def samples_of(name: str, folder: Path, count: int | None) -> str:
    """Return the folder's folder with what the tools get, drawn if it is not there."""
    if count is None:
        return "judged"
    drawn = folder / f"judged-{count}"
    if not drawn.exists():
        rng = np.random.default_rng(SEEDS["judged"])
        save(NETWORKS[name].draw(rng, folder / "model.onnx", count), drawn)
    return drawn.name


def fresh(name: str, folder: Path) -> list[Sample]:
    """Return samples that no tool was given."""
    rng = np.random.default_rng(FRESH_SEED)
    return NETWORKS[name].draw(rng, folder / "model.onnx", FRESH)


if __name__ == "__main__":
    sys.exit(main())
