"""Error against latency on a GPU: ours, the tools beside it, and random plans.

    python gpu_fronts.py pack --cache zoo-cache --networks nafnet vision_transformer --out packed
    python gpu_fronts.py measure packed --out results/gpu_deployed.json --seconds 480
    python gpu_fronts.py table results/peers.json
    python gpu_fronts.py draw results/gpu_fronts.json --out ../docs/images/fronts.svg

`pack` needs no GPU. It runs what `python -m peers` has not left in the cache, searches with ours
for ONNX Runtime, and writes 60 random plans, the share of layers in FP32 drawn first, then the
layers. It draws 16 fresh samples, computes the references, and writes one file. `measure` needs
ONNX Runtime CUDA and that file alone. It measures each network with its samples as they are, and
at a batch that fills a GPU. Every model is opened with the library's own options, so TF32 is on,
ours with those that its run recommends, and runs as a CUDA graph where all of it runs on the
device. `--without-tf32` was used for `results/gpu_fronts.json`. Each model is timed in turns with
FP32 as the library runs it. The error is the worst over judged and fresh samples, at the full
batch over one. Tools come first, random plans while there is time; what `--out` has already is not
measured again. `table` writes `peers.md` anew, with the latencies of `gpu_deployed.json`.
`draw` needs Matplotlib.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from gpu_turns import Bound, in_turns, opened_for

RANDOM, SEED = 60, 7
FRESH, FRESH_SEED = 16, 3
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
OURS, FP32, RANDOM_LABEL = "precision-bisect", "fp32", "random"
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
    packing.add_argument("--samples", type=int, help="for ours, as `python -m peers` has it")
    packing.add_argument("--limit-s", type=float, default=600.0, help="seconds for each tool")
    packing.add_argument("--out", type=Path, required=True)
    packing.set_defaults(call=pack)
    measuring = commands.add_parser("measure")
    measuring.add_argument("packed", type=Path, nargs="+")
    measuring.add_argument("--out", type=Path, required=True)
    measuring.add_argument("--seconds", type=float, default=480.0, help="no model begins later")
    measuring.add_argument("--without-tf32", action="store_true")
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

    from zoo.judge import load
    from zoo.networks import NETWORKS as ZOO
    from zoo.networks import prepare, save

    folder = Path(f"{given.out}.making")
    for name in given.networks:
        network, bound = ZOO[name], ZOO[name].limits[0]
        prepared = prepare(name, given.cache.resolve())
        fresh = prepared / f"fresh-{FRESH}"
        if not fresh.exists():
            rng = np.random.default_rng(FRESH_SEED)
            save(network.draw(rng, prepared / "model.onnx", FRESH), fresh)
        inputs = samples_of(name, prepared, given.samples)
        job = Job(
            folder=prepared,
            inputs=inputs,
            limit=network.limit,
            bound=bound,
            out=given.cache.resolve() / "peers",
        )
        models = {FP32: (job.model, {}), **_ours(job, prepared / f"ours-{inputs}")}
        models |= _peers(name, job, given.limit_s)
        models |= _random(job, prepared / "random")
        batch = BATCHES.get(name, FULL_BATCH)
        spec = {"network": name, "limit": network.limit, "bound": bound, "batch": batch}
        samples = [*load(job.samples), *load(fresh)]
        pack_network(job.model, models, samples, spec, folder / name)
        print(f"{name}: {len(models)} models", flush=True)
    archived(folder, given.out)
    print(f"{given.out}: {given.out.stat().st_size / 1e6:.1f} MB")


def _ours(job: Any, run: Path) -> dict[str, Any]:
    """Search for ONNX Runtime; return the points of the curve with how a session is opened."""
    command = [sys.executable, "-m", "precision_bisect"]
    if not (run / "result.json").exists():
        words = [str(job.model), f"--{job.limit}", f"{job.bound:g}", "--target", "onnxruntime"]
        words += ["--inputs", str(job.samples), "--out", str(run), "--overwrite"]
        subprocess.run([*command, *words], stdout=subprocess.DEVNULL, check=False)
    options = json.loads((run / "result.json").read_text())["deployment"] or {}
    models = {}
    for point in ("deploy", "fewest", "culprits", "margin"):
        out = run / point
        export = [*command, "export", str(run), "--export-point", point, "--out", str(out)]
        done = subprocess.run(export, stdout=subprocess.DEVNULL, check=False)
        if done.returncode == 0:
            models[f"{OURS}: {point}"] = (out / "model.mixed.onnx", options)
    return models


def _peers(name: str, job: Any, limit_s: float) -> dict[str, Any]:
    """Return the models of the other tools, by tool; run those that the cache has not."""
    from peers.__main__ import ANSWER, answer_folder, answered

    models: dict[str, Any] = {}
    for tool in TOOLS:
        there = answer_folder(tool, name, job) / ANSWER
        answer = json.loads(there.read_text()) if there.exists() else None
        if answer is None:
            took, answer = answered(tool, name, job, limit_s)
            print(f"{name}: {tool}: {took.wall_s:.0f} s {took.failed}", flush=True)
        for path in answer.get("models", {}).values():
            models[tool] = Path(path), {}
    return models


def _random(job: Any, there: Path) -> dict[str, Any]:
    """Write random plans as the answers of tools that give a list are written."""
    from peers.tools import written

    from precision_bisect.graphs.load import load_model

    names = load_model(job.model).table.names
    rng = np.random.default_rng(SEED)
    models: dict[str, Any] = {}
    for number in range(RANDOM):
        kept = [str(name) for name in np.array(names)[rng.random(len(names)) < rng.random()]]
        out = there / str(number)
        out.mkdir(parents=True, exist_ok=True)
        (path,) = written(replace(job, out=out), kept).models.values()
        models[f"{RANDOM_LABEL} {number}"] = path, {}
    return models


def measure(given: argparse.Namespace) -> None:
    """Judge and time every packed model at both batches; write after each network."""
    import onnxruntime as ort
    from gpu_packing import unpacked

    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    deadline = time.monotonic() + given.seconds
    rows: list[dict[str, Any]] = []
    if given.out.exists():
        rows = json.loads(given.out.read_text())["rows"]
    with tempfile.TemporaryDirectory() as temporary:
        folders = [
            folder
            for archive in given.packed
            for folder in unpacked(archive, Path(temporary) / archive.name)
        ]
        for random in (False, True):
            rounds = [(folder, full) for folder in folders for full in (False, True)]
            for place, (folder, full) in enumerate(rounds):
                now = time.monotonic()
                # Of what is left each has its share, which the next ones get if it needs less.
                until = now + max(deadline - now, 0.0) / (len(rounds) - place)
                bench = Bench(folder, full=full, given=given, until=until if random else deadline)
                rows += bench.measured(rows, random=random)
                told = {"machine": _machine(), "onnxruntime": ort.__version__, "rows": rows}
                given.out.write_text(json.dumps(told, indent=1) + "\n")
                print(f"{bench.title}: {len(rows)} rows, {deadline - now:.0f} s left", flush=True)


class Bench:
    """A network's models with its samples as they are, or at a `full` batch."""

    def __init__(
        self, folder: Path, *, full: bool, given: argparse.Namespace, until: float
    ) -> None:
        from gpu_packing import SPEC

        from zoo.judge import load

        spec = json.loads((folder / SPEC).read_text())
        self._folder, self._full, self._until = folder, full, until
        self._models, batch = spec.pop("models"), spec.pop("batch")
        self._samples = load(folder / "samples")
        self._wanted = [list(outputs.values()) for outputs in load(folder / "references")]
        self._provider, self._tf32 = given.provider, not given.without_tf32
        own = next(len(array) for array in self._samples[0].values() if array.ndim)
        if full:
            self._samples, self._wanted = self._stacked(batch // own)
        self._shared = {**spec, "batch": batch if full else own}
        self.title = f"{spec['network']}, batch {self._shared['batch']}"

    def _stacked(self, count: int) -> tuple[list[Any], list[Any]]:
        """Return one sample of many, and what is wanted of it."""
        samples = list(islice(cycle(self._samples), count))
        wanted = list(islice(cycle(self._wanted), count))
        one = {
            name: np.concatenate([sample[name] for sample in samples]) if array.ndim else array
            for name, array in samples[0].items()
        }
        return [one], [[np.concatenate(outputs) for outputs in zip(*wanted, strict=True)]]

    def measured(self, known: Sequence[Mapping[str, Any]], *, random: bool) -> list[Any]:
        """Return rows of the tools' models, or of random plans, without those that are known."""
        done = {
            row["label"]
            for row in known
            if all(row[key] == value for key, value in self._shared.items())
        }
        models = [
            model
            for model in self._models
            if model["label"] not in done and model["label"].startswith(RANDOM_LABEL) is random
        ]
        if not models or time.monotonic() > self._until:
            return []
        rows: list[dict[str, Any]] = []
        figures: dict[tuple[int, str], dict[str, Any]] = {}
        baseline = self._opened(self._models[0])
        for model in models:
            if time.monotonic() > self._until:
                break
            same = model["model"], json.dumps(model["options"])
            if same not in figures:
                figures[same] = self._figures(model, baseline)
            rows.append({**self._shared, "label": model["label"], **figures[same]})
        return rows

    def _figures(self, model: Mapping[str, Any], baseline: "Bound") -> dict[str, Any]:
        try:
            bound = self._opened(model)
            error = bound.judged(self._shared["limit"])
            latency = in_turns(bound, baseline)
        except Exception as problem:  # Whatever the library says of a tool's model.
            return {"failed": f"{type(problem).__name__}: {problem}"[:300]}
        return {"graph": bound.graph, "error": error, "latency": latency}

    def _opened(self, model: Mapping[str, Any]) -> "Bound":
        path = self._folder / f"{model['model']}.batch.onnx"
        if not (self._full and path.exists()):
            path = self._folder / f"{model['model']}.onnx"
        options = model["options"]
        if not self._tf32:
            options = options or {"provider_options": {"use_tf32": "0"}}
        return opened_for(path, options, self._samples, self._wanted, self._provider)


def _machine() -> Mapping[str, Any]:
    from gpu_job import gpu_query

    gpus = gpu_query("name", "driver_version") or []
    return {"gpus": gpus, "python": platform.python_version()}


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
            x, y = row["latency"]["median"], min(float(row["error"]), WORST)
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
