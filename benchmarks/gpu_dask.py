"""One search on one GPU, on two, and on a Dask cluster of two, one of which is lost and replaced.

    python benchmarks/gpu_dask.py m.onnx --inputs inputs --out dask.json --arguments="--tol 3e-3"

The worker of the second GPU is killed once a third of the builds have ended that the run before
had, and another one joins on that GPU. `same` tells whether the answer is that of two GPUs without
Dask: other numbers of workers try other plans. `--backend emulated` tries it out without a GPU.
"""

import argparse
import json
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_job import run, timeline
from gpu_runs import machine

from zoo.networks import ROOT

sys.path.append(str(ROOT / "tests"))
from fleet import Fleet, fleet

LIMIT_S = 240.0
GPUS = ("0", "1")


def on(fleet_: Fleet, name: str, gpu: str) -> Any:
    """Start a worker on a GPU, and wait until it has joined."""
    process = fleet_.worker(name, {"CUDA_VISIBLE_DEVICES": gpu})
    fleet_.wait_for(name)
    return process


def replaced(fleet_: Fleet, victim: Any, log: Path, after: int, noted: list[int]) -> None:
    """Kill a worker once so many builds have ended, and start another one on its GPU."""
    ended = 0
    while ended < after:
        time.sleep(0.05)
        ended = timeline(log, 0.0).builds
    victim.kill()
    noted.append(ended)
    on(fleet_, "joined", GPUS[1])


def measure(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run the main command; return how it ended."""
    ended = run([*command, "--out", str(folder / "run")], folder, tool=ROOT, limit_s=LIMIT_S)
    told = timeline(folder / "run" / "events.jsonl", ended.begun)
    row: dict[str, Any] = {"exit": ended.code, "wall_s": ended.wall_s, "builds": told.builds}
    row |= {"builds_s": told.builds_s, "forecasts_s": told.forecasts_s, "said": ended.said}
    found = folder / "run" / "result.json"
    if found.exists():
        result = json.loads(found.read_text())
        row |= {"status": result["status"], "kept": result["kept"], "error": result["error"]}
    return row


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arguments", default="", help="further ones for the main command")
    given = parser.parse_args()
    command = ["-m", "precision_bisect", str(given.model)]
    command += ["--inputs", str(given.inputs), "--backend", given.backend]
    command += ["--overwrite", *shlex.split(given.arguments)]
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        local = "gpu:0,1" if given.backend != "emulated" else "2"
        rows["one GPU"] = measure(command, folder / "one")
        rows["two GPUs"] = measure([*command, "--workers", local], folder / "two")
        for name, lost in (("Dask", False), ("Dask, one lost and one joined", True)):
            with fleet(folder / f"fleet-{lost}") as cluster:
                workers = [on(cluster, f"worker{gpu}", gpu) for gpu in GPUS]
                place, noted = folder / f"dask-{lost}", list[int]()
                log, after = place / "run" / "events.jsonl", rows["two GPUs"]["builds"] // 3
                if lost:
                    arguments = (cluster, workers[1], log, after, noted)
                    threading.Thread(target=replaced, args=arguments, daemon=True).start()
                asked = [*command, "--cluster", cluster.address, "--workers", "2"]
                rows[name] = measure(asked, place) | ({"lost_after": noted} if lost else {})
    expected = rows["two GPUs"].get("kept")
    for row in rows.values():
        row["same"] = row.get("kept") == expected
        row["kept"] = len(row.get("kept", ()))
    told = {"command": shlex.join(["python", *command]), "machine": machine(), "rows": rows}
    given.out.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(rows, indent=1))
    good = (row["exit"] == 0 and (row["same"] or name == "one GPU") for name, row in rows.items())
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
