"""Runs of ours on a GPU on packed networks; their plans join the packed models."""

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from gpu_job import Ended, run
from gpu_judge import OPENING
from gpu_packing import SPEC

from precision_bisect.graphs.batching import rebatched
from precision_bisect.graphs.load import load_model
from precision_bisect.pipeline.elsewhere import products
from precision_bisect.runs.results.saved import read_result
from precision_bisect.runs.runfolder import MIXED_MODEL, RESULT
from zoo.networks import ROOT

TF32 = "use_tf32"
WITHOUT_TF32: Mapping[str, Any] = {"provider_options": {TF32: "0"}}
LABEL = "precision-bisect, run there"


OWN, FULL = "own", "full"
"""The batches that are measured at. Of a packed model the second tells which is its only one."""


def search(
    folder: Path, limit_s: float, backend: str, *, full: bool | None = None
) -> Mapping[str, Any]:
    """Run the command line on a network's folder, add its plans, and tell what the run took.

    After `limit_s` seconds the run is interrupted, and its best plan counts. With `full` given
    the run times at a full batch, or at the samples', and its plans are measured there alone.
    """
    spec = json.loads((folder / SPEC).read_text())
    at = {} if full is None else {FULL: full}
    place = "-full" * bool(full)
    work, inputs = folder / f"run{place}", folder / "judged"
    shutil.rmtree(inputs, ignore_errors=True)
    inputs.mkdir()
    for path in sorted((folder / "samples").glob("*.npz"))[: spec["judged"]]:
        shutil.copyfile(path, inputs / path.name)
    command = [str(folder / "0.onnx"), "--inputs", str(inputs), "--backend", backend]
    command += [f"--{spec['limit']}", f"{spec['bound']:g}", "--out", str(work)]
    command += ["--time-batch", str(spec["batch"])] if full else []
    ended = _called(command, folder / "log", limit_s)
    took = {"network": spec["network"], **at, "wall_s": ended.wall_s, "exit": ended.code}
    if not (work / RESULT).exists():
        return {**took, "error": ended.said}
    result = json.loads((work / RESULT).read_text())
    multiplied, plans = products_of(folder / "0.onnx"), plans_of(result)
    own: dict[str, Mapping[str, Any]] = {}
    for point, kept in plans.items():
        out, name = work / point, f"run{place}-{point}"
        export = ["export", str(work), "--export-point", point, "--out", str(out)]
        done = _called(export, folder / "log", limit_s)
        if done.code or kept is None:
            took[f"no {point}"] = done.said
            continue
        model = onnx.load(out / MIXED_MODEL)
        onnx.save(model, folder / f"{name}.onnx")
        if (many := rebatched(model, spec["batch"])) is not model:
            onnx.save(many, folder / f"{name}.batch.onnx")
        options = opening(result, kept, multiplied)
        own[f"{LABEL}: {point}"] = {"model": name, "options": options}
    if (fp32 := fp32_instead(work)) is not None:
        own[f"{LABEL}: answer"] = {"model": 0, "options": fp32}
    elif f"{LABEL}: deploy" in own:
        own[f"{LABEL}: answer"] = own[f"{LABEL}: deploy"]
    spec["models"] += [{**model, "label": label, **at} for label, model in own.items()]
    (folder / SPEC).write_text(json.dumps(spec, indent=1))
    told = {key: result[key] for key in ("status", "candidates", "builds", "evaluations", "tf32")}
    deploy = {key: (result["deploy"] or {}).get(key) for key in ("error", "latency", "tf32")}
    layers = {point: None if kept is None else len(kept) for point, kept in plans.items()}
    return {**took, **told, "layers": layers, "deploy": deploy}


def _called(words: Sequence[str], folder: Path, limit_s: float) -> Ended:
    return run(["-m", "precision_bisect", *words], folder, tool=ROOT, limit_s=limit_s)


def plans_of(result: Mapping[str, Any]) -> Mapping[str, Sequence[str] | None]:
    """Return the layers that each plan of a run keeps; what keeps fewest is deployed by itself."""
    deploy = result["deploy"] or result
    return {"deploy": deploy["kept"], "fewest": result["kept"]}


def fp32_instead(run: Path) -> Mapping[str, Any] | None:
    """Return how FP32 is opened where it is what a run says to deploy; None where a plan is."""
    result = read_result(run / RESULT, "")
    if not result.fp32_wins:
        return None
    assert result.deploy is not None
    in_tf32 = result.tf32 is None or result.deploy.rivals_tf32(result.tf32)
    return {} if in_tf32 else WITHOUT_TF32


def opening(
    result: Mapping[str, Any], kept: Sequence[str], multiplied: Collection[str]
) -> dict[str, Any]:
    """Return how a session is opened for a plan of a run: its options, with TF32 by the plan.

    TF32 is on where no kept layer is one of the `multiplied`, which alone round to it, and where
    the run exported the plan with it: one that holds so but has no room leaves without.
    """
    options = {key: value for key, value in (result["deployment"] or {}).items() if key in OPENING}
    own = options.get("provider_options", {})
    exported = (result["deploy"] if result["promises_of"] == "deploy" else result)["kept"]
    as_exported = result["tf32_on"] and set(kept) == set(exported)
    tf32 = as_exported or not set(kept) & set(multiplied)
    return {**options, "provider_options": {**own, TF32: "1" if tf32 else "0"}}


def products_of(model: Path) -> set[str]:
    """Return the layers whose operands TF32 rounds."""
    loaded = load_model(model)
    return {str(loaded.table.names[number]) for number in products(loaded)}
