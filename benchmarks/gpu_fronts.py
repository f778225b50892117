"""Error against latency on a GPU: ours, the tools beside it, and random plans.

    python gpu_fronts.py pack --cache zoo-cache --networks nafnet vision_transformer --out packed
    python gpu_fronts.py measure packed --out results/gpu_deployed.json --seconds 480
    python gpu_fronts.py table results/peers.json
    python gpu_fronts.py draw results/gpu_fronts.json --out ../docs/images/fronts.svg

`pack` needs no GPU. It runs what `python -m peers` has not left in the cache, searches with ours
for ONNX Runtime, and writes random plans, the share of layers in FP32 drawn first, then the
layers. It draws 64 fresh samples, computes the references, and writes one file. `measure` needs
ONNX Runtime CUDA and such files alone. It measures each network with its samples as they are, and
at a batch that fills a GPU. Every model is opened with the library's own options, so TF32 is on,
ours with those that its run recommends, and runs as a CUDA graph where all of it runs on the
device. Ours may run there, too, at the samples' batch and with `--time-batch` at the full one.
Each model is timed in turns with FP32 as the library runs it, and judged on the samples that the
tools had and on fresh ones. Tools come first, random plans while there is time; what `--out` has
already is not measured again. `table` writes `peers.md` anew, with the latencies of
`gpu_deployed.json`. `draw` needs Matplotlib; its figures are of models that ran without TF32.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from gpu_bench import RANDOM_LABEL, measure
from gpu_fronts_runs import FULL, OWN, WITHOUT_TF32, fp32_instead, opening, plans_of, products_of

RANDOM, SEED = 60, 7
SAMPLES, FRESH, FRESH_SEED = 16, 64, 3
BATCHES = {"ppocr_det": 16, "ppocr_rec": 16, "pitch": 16}
FULL_BATCH = 32
"""A batch that fills a GPU, of networks that `BATCHES` has not."""
NETWORKS = (
    *("nafnet", "magika", "pitch", "ppocr_det", "ppocr_rec", "t5_encoder"),
    *("unet", "vision_transformer", "mixture", "decoder_step"),
)
TOOLS = (
    *("AutoCast", "AutoCast, data_max 65504", "onnxconverter-common"),
    *("Polygraphy bisect, forward", "Polygraphy bisect, reverse", "norms and softmax", "nothing"),
)
"""Tools beside ours, as `python -m peers` calls them."""
OURS, FP32 = "precision-bisect", "fp32"
PLAIN_FP32 = "fp32 without TF32"
COLUMNS = 3
LEAST, WORST = 1e-7, 10.0
"""Errors beyond are drawn at these; infinity is one."""
KINDS = {
    OURS: ("D", "#1a7f37"),
    "fp32": ("s", "black"),
    "nothing": ("s", "#e8710a"),
    "random": (".", "#b0b0b0"),
    "other tools": ("o", "#0b57d0"),
}
"""How points are drawn, by how their labels begin."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("--networks", nargs="+", default=NETWORKS)
    packing.add_argument("--cache", type=Path, default=Path("zoo-cache"))
    packing.add_argument("--tools", nargs="*", choices=TOOLS, default=TOOLS)
    packing.add_argument("--samples", type=int, default=SAMPLES, help="that the tools are given")
    packing.add_argument("--fresh", type=int, default=FRESH, help="how many samples judge beside")
    packing.add_argument("--random", type=int, default=RANDOM, help="how many random plans")
    packing.add_argument("--as-they-are", action="store_true", help="at no full batch")
    packing.add_argument("--limit-s", type=float, default=600.0, help="seconds for each tool")
    packing.add_argument("--out", type=Path, required=True)
    packing.set_defaults(call=pack)
    measuring = commands.add_parser("measure")
    measuring.add_argument("packed", type=Path, nargs="+")
    measuring.add_argument("--out", type=Path, required=True)
    measuring.add_argument("--seconds", type=float, default=480.0, help="no model begins later")
    measuring.add_argument("--search", nargs="*", default=(), help="networks to run ours on first")
    measuring.add_argument("--at", nargs="+", choices=(OWN, FULL), default=(OWN, FULL))
    measuring.add_argument("--only", nargs="+", default=("",), help="labels that begin so")
    measuring.add_argument("--search-s", type=float, default=100.0, help="seconds of such a run")
    measuring.add_argument("--backend", default="onnxruntime", help="of such a run")
    measuring.add_argument("--provider", default="CUDAExecutionProvider")
    measuring.set_defaults(call=measure)
    listing = commands.add_parser("table")
    listing.add_argument("peers", type=Path)
    listing.set_defaults(call=table)
    drawing = commands.add_parser("draw")
    drawing.add_argument("figures", type=Path)
    drawing.add_argument("--out", type=Path, required=True)
    drawing.set_defaults(call=draw)
    given = parser.parse_args(argv)
    given.call(given)
    return 0


def pack(given: argparse.Namespace) -> None:
    """Write models, samples, references and a table of the models of each network to one file."""
    from gpu_packing import archived, pack_network
    from peers.__main__ import samples_of
    from peers.tools import Job

    from precision_bisect.graphs.batching import batch_of
    from zoo.judge import load
    from zoo.networks import NETWORKS as ZOO
    from zoo.networks import prepare

    folder = Path(f"{given.out}.making")
    for name in given.networks:
        network, bound = ZOO[name], ZOO[name].limits[0]
        prepared = prepare(name, given.cache.resolve())
        # The example's other pictures are what is fresh.
        inputs = "judged" if name == "nafnet" else samples_of(name, prepared, given.samples)
        job = Job(
            folder=prepared,
            inputs=inputs,
            limit=network.limit,
            bound=bound,
            out=given.cache.resolve() / "peers",
        )
        models = {FP32: (job.model, {}), PLAIN_FP32: (job.model, WITHOUT_TF32)}
        models |= _ours(job, prepared / f"ours-{inputs}")
        models |= _peers(name, job, given)
        models |= _random(job, prepared / "random", given.random)
        judged = load(job.samples)
        batch = BATCHES.get(name, FULL_BATCH)
        if given.as_they_are:
            batch = batch_of(judged[0])
        spec = {"network": name, "limit": network.limit, "bound": bound, "batch": batch}
        samples = [*judged, *_fresh(name, job.model, judged)[: given.fresh]]
        pack_network(job.model, models, samples, {**spec, "judged": len(judged)}, folder / name)
        print(f"{name}: {len(models)} models", flush=True)
    archived(folder, given.out)
    print(f"{given.out}: {given.out.stat().st_size / 1e6:.1f} MB")


def _fresh(name: str, model: Path, judged: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return samples that no tool was given; the example's are all of its pictures, turned."""
    from zoo.judge import load
    from zoo.networks import NAFNET
    from zoo.networks import NETWORKS as ZOO

    if name != "nafnet":
        return ZOO[name].draw(np.random.default_rng(FRESH_SEED), model, FRESH)
    turned = [
        {"image": np.ascontiguousarray(np.rot90(image[:, :, ::way], quarters, (2, 3)))}
        for image in (sample["image"] for sample in load(NAFNET / "inputs"))
        for way, quarters in product((1, -1), range(4))
    ]
    seen = {sample["image"].tobytes() for sample in judged}
    return [sample for sample in turned if sample["image"].tobytes() not in seen]


def _ours(job: Any, run: Path) -> dict[str, Any]:
    """Search for ONNX Runtime; return the plans with how a session is opened for each.

    The answer is FP32 where the run says so, else the plan to deploy.
    """
    command = [sys.executable, "-m", "precision_bisect"]
    if not (run / "result.json").exists():
        words = [str(job.model), f"--{job.limit}", f"{job.bound:g}", "--target", "onnxruntime"]
        words += ["--inputs", str(job.samples), "--out", str(run), "--overwrite"]
        subprocess.run([*command, *words], stdout=subprocess.DEVNULL, check=False)
    result = json.loads((run / "result.json").read_text())
    multiplied = products_of(job.model)
    models = {}
    for point, kept in plans_of(result).items():
        out = run / point
        export = [*command, "export", str(run), "--export-point", point, "--out", str(out)]
        done = subprocess.run(export, stdout=subprocess.DEVNULL, check=False)
        if done.returncode == 0 and kept is not None:
            options = opening(result, kept, multiplied)
            models[f"{OURS}: {point}"] = (out / "model.mixed.onnx", options)
    fp32 = fp32_instead(run)
    answer = models.get(f"{OURS}: deploy") if fp32 is None else (job.model, fp32)
    return models if answer is None else {**models, f"{OURS}: answer": answer}


def _peers(name: str, job: Any, given: argparse.Namespace) -> dict[str, Any]:
    """Return the models of the other tools, by tool; run those that the cache has not."""
    from peers.__main__ import ANSWER, answer_folder, answered

    models: dict[str, Any] = {}
    for tool in given.tools:
        there = answer_folder(tool, name, job) / ANSWER
        answer = json.loads(there.read_text()) if there.exists() else None
        if answer is None:
            took, answer = answered(tool, name, job, given.limit_s)
            print(f"{name}: {tool}: {took.wall_s:.0f} s {took.failed}", flush=True)
        for path in answer.get("models", {}).values():
            models[tool] = Path(path), {}
    return models


def _random(job: Any, there: Path, count: int) -> dict[str, Any]:
    """Write random plans as the answers of tools that give a list are written."""
    from peers.tools import written

    from precision_bisect.graphs.load import load_model

    names = load_model(job.model).table.names
    rng = np.random.default_rng(SEED)
    models: dict[str, Any] = {}
    for number in range(count):
        kept = [str(name) for name in np.array(names)[rng.random(len(names)) < rng.random()]]
        out = there / str(number)
        out.mkdir(parents=True, exist_ok=True)
        (path,) = written(replace(job, out=out), kept).models.values()
        models[f"{RANDOM_LABEL} {number}"] = path, {}
    return models


def table(given: argparse.Namespace) -> None:
    """Write the tables of the peers."""
    from peers.__main__ import write_tables

    rows = json.loads(given.peers.read_text())["rows"]
    write_tables(rows, given.peers.with_suffix(".md"))


def draw(given: argparse.Namespace) -> None:
    """Draw a panel for each network: error by latency, the limit as a line."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "fronts"
    from matplotlib import pyplot as plt

    rows = json.loads(given.figures.read_text())["rows"]
    networks = list(dict.fromkeys(row["network"] for row in rows))
    lines = -(-len(networks) // COLUMNS)
    figure, panels = plt.subplots(
        lines, COLUMNS, figsize=(4.2 * COLUMNS, 3.4 * lines), layout="constrained"
    )
    rows = [row for row in rows if row.get("batch", 1) == 1]
    for network, axes in zip(networks, panels.flat, strict=False):
        own = [row for row in rows if row["network"] == network and "latency" in row]
        for row in own:
            worst = max(float(row["error"]), float(row.get("fresh_error", 0)))
            x, y = row["latency"]["median"], min(worst, WORST)
            kind = next((kind for kind in KINDS if row["label"].startswith(kind)), "other tools")
            axes.plot(x, max(y, LEAST), KINDS[kind][0], color=KINDS[kind][1], label=kind)
        axes.axhline(own[0]["bound"], color="#c5221f", linewidth=1, label="limit")
        axes.set(yscale="log", xlabel="latency, ms", ylabel="worst error", title=network)
    for axes in panels.flat[len(networks) :]:
        axes.set_visible(False)
    labels = {
        label: one for one, label in zip(*panels.flat[0].get_legend_handles_labels(), strict=True)
    }
    figure.legend(labels.values(), labels, loc="outside lower center", ncols=len(labels))
    figure.savefig(given.out, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())
