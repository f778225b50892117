"""What a search finds that ranks by its engine's tensors, beside one that ranks by the emulator.

    python benchmarks/engine_ranking.py --cache zoo-cache --out engine_ranking.json pitch nafnet

Each network is searched both ways, in processes of their own; the row of a pair has Spearman's
correlation of the two rankings, too. `--backend emulated` tries the script without a GPU.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from gpu_job import run, timeline
from gpu_runs import FINISHED, machine
from tensor_ranking import ranks

from zoo.networks import NETWORKS, ROOT

WAYS = ("emulator", "engine")
GRACE_S = 30
"""Beyond the time that the tool is given."""


def searched(name: str, way: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Search one network; return the figures, and the error of each layer alone by its plan."""
    folder = asked.runs.resolve() / f"{name}-{way}"
    network = asked.cache.resolve() / name
    command = ["-m", "precision_bisect", str(network / "model.onnx")]
    command += ["--inputs", str(network / "judged"), "--tol", f"{NETWORKS[name].limits[0]:g}"]
    command += ["--backend", asked.backend, "--max-time", f"{asked.seconds}s", "--overwrite"]
    command += ["--rank-by", way, "--out", str(folder / "run")]
    ended = run(command, folder, tool=ROOT, limit_s=asked.seconds + GRACE_S)
    if ended.code not in FINISHED:
        return {"error": ended.said}
    told = timeline(folder / "run" / "events.jsonl", ended.begun)
    result = json.loads((folder / "run" / "result.json").read_text(encoding="utf-8"))
    certificate = result["certificate"] or {}
    return {
        "wall_s": ended.wall_s,
        "status": result["status"],
        "candidates": result["candidates"],
        "kept": result["kept"],
        "worst": result["error"],
        "minimal": certificate.get("minimal"),
        "trials": result["trials"],
        "builds": result["builds"],
        "builds_s": told.builds_s,
        "forecasts_s": told.forecasts_s,
        "notes": [note for note in result.get("notes", ()) if "rank" in str(note)],
        "ranking": _ranking(folder / "run" / "events.jsonl", result["candidates"]),
    }


def _ranking(log: Path, candidates: int) -> dict[str, float]:
    """Return the error of each layer that runs low alone, by its plan, as the ranking has it."""
    events = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    return {
        event["plan"]: event["error"]
        for event in events
        if event["event"] == "trial_finished"
        and event["phase"] == "ranking"
        and event["kept"] == candidates - 1
        and event["error"] is not None
    }


def row(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Return what both ways found of a network, and how well their rankings agree."""
    found = {way: searched(name, way, asked) for way in WAYS}
    first, second = (found[way].pop("ranking", {}) for way in WAYS)
    both = sorted(first.keys() & second.keys())
    row: dict[str, Any] = {"network": name, "limit": NETWORKS[name].limits[0], **found}
    if len(both) > 1:
        places = [ranks([errors[plan] for plan in both]) for errors in (first, second)]
        row["correlation"] = round(float(np.corrcoef(places[0], places[1])[0, 1]), 3)
    return row | {"layers_ranked": len(both)}


def main() -> None:
    """Write the rows, each as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="+", choices=[*NETWORKS], metavar="NETWORK")
    parser.add_argument("--cache", type=Path, required=True, help="prepared networks")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--seconds", type=int, default=100, help="for each search")
    asked = parser.parse_args()
    rows = []
    for name in asked.networks:
        rows.append(row(name, asked))
        answer = {"machine": machine(), "rows": rows}
        asked.out.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(rows[-1])[:400], flush=True)


if __name__ == "__main__":
    main()
