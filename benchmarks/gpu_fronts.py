"""Error against latency on a GPU: ours, the tools beside it, and random plans.

    python gpu_fronts.py pack --cache zoo-cache --networks nafnet pitch --out packed
    python gpu_fronts.py measure packed --out results/gpu_fronts.json
    python gpu_fronts.py draw results/gpu_fronts.json --out ../docs/images/fronts.svg

`pack` needs no GPU, but what `python -m peers` left in the cache: it searches with ours for
ONNX Runtime, and writes 60 random plans, the share of layers in FP32 drawn first, then the layers.
It draws 16 fresh samples, and computes the references. `measure` needs ONNX Runtime CUDA and this
folder alone. Every model is opened with the library's own options but TF32 off, ours with those
that its run recommends, and runs as a CUDA graph where all of it runs on the device. All models of
a network are timed in turn, the median of rounds counts. The error is the worst over judged and
fresh samples. `draw` needs Matplotlib.
"""

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

RANDOM, SEED = 60, 7
FRESH, FRESH_SEED = 16, 3
ROUNDS, RUNS = 9, 30
NETWORKS = (
    *("nafnet", "magika", "pitch", "ppocr_det", "ppocr_rec", "t5_encoder"),
    *("unet", "vision_transformer", "mixture", "decoder_step"),
)
SPEC, OURS = "spec.json", "precision-bisect"
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
    packing.add_argument("--out", type=Path, required=True)
    packing.set_defaults(call=pack)
    measuring = commands.add_parser("measure")
    measuring.add_argument("packed", type=Path)
    measuring.add_argument("--out", type=Path, required=True)
    measuring.set_defaults(call=measure)
    drawing = commands.add_parser("draw")
    drawing.add_argument("figures", type=Path)
    drawing.add_argument("--out", type=Path, required=True)
    drawing.set_defaults(call=draw)
    given = parser.parse_args(argv)
    given.call(given)
    return 0


def pack(given: argparse.Namespace) -> None:
    """Write a folder for each network: models, samples, references, and a table of the models."""
    from peers.__main__ import samples_of

    from zoo.judge import load, plain
    from zoo.networks import NETWORKS as ZOO
    from zoo.networks import save

    for name in given.networks:
        network, bound = ZOO[name], ZOO[name].limits[0]
        folder, there = given.cache / name, given.out / name
        there.mkdir(parents=True, exist_ok=True)
        original = folder / "model.onnx"
        drawn = network.draw(np.random.default_rng(FRESH_SEED), original, FRESH)
        inputs = folder / samples_of(name, folder, given.samples)
        samples = [*load(inputs), *drawn]
        save(samples, there / "samples")
        run = plain(original)
        save([dict(enumerated(run(sample))) for sample in samples], there / "references")
        models = {"fp32": (original, {}), **_ours(original, inputs, network.limit, bound, there)}
        models |= _peers(given.cache / "peers" / f"{name}-{bound:g}")
        models |= _random(folder, network.limit, bound, there)
        table = []
        for number, (label, (model, options)) in enumerate(models.items()):
            shutil.copyfile(model, there / f"{number}.onnx")
            table.append({"label": label, "model": f"{number}.onnx", "options": options})
        spec = {"network": name, "limit": network.limit, "bound": bound, "models": table}
        (there / SPEC).write_text(json.dumps(spec, indent=1))
        print(f"{name}: {len(table)} models", flush=True)


def enumerated(outputs: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield outputs under names that keep their order."""
    for number, value in enumerate(outputs):
        yield f"{number:03}", value


def _ours(model: Path, inputs: Path, limit: str, bound: float, there: Path) -> dict[str, Any]:
    """Search for ONNX Runtime; return the points of the curve with how a session is opened."""
    command = [sys.executable, "-m", "precision_bisect"]
    run = there / "run"
    words = [str(model), f"--{limit}", f"{bound:g}", "--target", "onnxruntime"]
    words += ["--inputs", str(inputs), "--out", str(run), "--overwrite"]
    subprocess.run([*command, *words], stdout=subprocess.DEVNULL, check=False)
    options = json.loads((run / "result.json").read_text())["deployment"] or {}
    models = {f"{OURS}: answer": (run / "model.mixed.onnx", options)}
    for point in ("culprits", "margin"):
        out = run / point
        export = [*command, "export", str(run), "--export-point", point, "--out", str(out)]
        done = subprocess.run(export, stdout=subprocess.DEVNULL, check=False)
        if done.returncode == 0:
            models[f"{OURS}: {point}"] = (out / "model.mixed.onnx", options)
    return models


def _peers(folder: Path) -> dict[str, Any]:
    """Return the models of the other tools, by tool."""
    from peers.__main__ import ANSWER
    from peers.tools import TOOLS

    found: dict[str, Any] = {}
    for tool in TOOLS:
        answer = folder / "".join(c if c.isalnum() else "-" for c in tool) / ANSWER
        if tool != OURS and answer.exists():
            for path in json.loads(answer.read_text()).get("models", {}).values():
                found[tool] = Path(path), {}
    return found


def _random(folder: Path, limit: Any, bound: float, there: Path) -> dict[str, Any]:
    """Write random plans as the answers of tools that give a list are written."""
    from peers.tools import Job, written

    from precision_bisect.graphs.load import load_model

    names = load_model(folder / "model.onnx").table.names
    rng = np.random.default_rng(SEED)
    job = Job(folder=folder, inputs="judged", limit=limit, bound=bound, out=there)
    found: dict[str, Any] = {}
    for number in range(RANDOM):
        kept = [str(name) for name in np.array(names)[rng.random(len(names)) < rng.random()]]
        out = there / "random" / str(number)
        out.mkdir(parents=True, exist_ok=True)
        (path,) = written(replace(job, out=out), kept).models.values()
        found[f"random {number}"] = path, {}
    return found


def measure(given: argparse.Namespace) -> None:
    """Judge every packed model, and time all of a network in turn; write after each network."""
    import onnxruntime as ort

    from zoo.judge import load

    ort.preload_dlls()
    rows: list[dict[str, Any]] = []
    if given.out.exists():
        rows = json.loads(given.out.read_text())["rows"]
    for path in sorted(given.packed.glob(f"*/{SPEC}")):
        spec = json.loads(path.read_text())
        rows = [row for row in rows if row["network"] != spec["network"]]
        samples = load(path.parent / "samples")
        wanted = [list(outputs.values()) for outputs in load(path.parent / "references")]
        running: list[tuple[dict[str, Any], Bound]] = []
        for model in spec.pop("models"):
            row = {**spec, "label": model["label"]}
            rows.append(row)
            try:
                bound = opened_for(path.parent / model["model"], model["options"], samples, wanted)
                row |= {"graph": bound.graph, "error": bound.judged(spec["limit"])}
                running.append((row, bound))
            except Exception as problem:  # Whatever the library says of a tool's model.
                row["failed"] = f"{type(problem).__name__}: {problem}"[:300]
        timed = in_turn([bound for _, bound in running])
        for (row, _), times in zip(running, timed, strict=True):
            first, middle, third = statistics.quantiles(times, n=4)
            row["latency"] = {"median": round(middle, 4), "spread": round(third - first, 4)}
        told = {"machine": _machine(), "onnxruntime": ort.__version__, "rows": rows}
        given.out.write_text(json.dumps(told, indent=1) + "\n")
        print(f"{spec['network']}: {len(rows)} rows", flush=True)


@dataclass(slots=True, kw_only=True)
class Bound:
    """A session with inputs and outputs on the device, as a CUDA graph where it can be one."""

    session: Any
    samples: Sequence[Any]
    wanted: Sequence[Any]
    graph: bool
    binding: Any = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[Any] = ()

    def run(self) -> None:
        """Run once, and wait for the end."""
        self.session.run_with_iobinding(self.binding)
        self.binding.synchronize_outputs()

    def bind(self, sample: Any, want: Any) -> None:
        """Take memory on the device for a sample and for what the FP32 model makes of it."""
        from onnxruntime import OrtValue

        self.binding = self.session.io_binding()
        self.inputs = {
            each.name: OrtValue.ortvalue_from_numpy(
                np.ascontiguousarray(sample[each.name]), "cuda", 0
            )
            for each in self.session.get_inputs()
        }
        self.outputs = [
            OrtValue.ortvalue_from_shape_and_type(list(each.shape), each.dtype, "cuda", 0)
            for each in want
        ]
        for name, given in self.inputs.items():
            self.binding.bind_ortvalue_input(name, given)
        for each, held in zip(self.session.get_outputs(), self.outputs, strict=True):
            self.binding.bind_ortvalue_output(each.name, held)

    def judged(self, limit: Any) -> float | str:
        """Return the worst error over the samples; infinity as a string, as JSON has none."""
        from zoo.judge import error

        worst = 0.0
        for sample, want in zip(self.samples, self.wanted, strict=True):
            if self.graph:
                for name, value in self.inputs.items():
                    value.update_inplace(np.ascontiguousarray(sample[name]))
            else:
                self.bind(sample, want)
            self.run()
            worst = max(worst, error([each.numpy() for each in self.outputs], want, limit))
        return worst if np.isfinite(worst) else str(worst)


def opened_for(
    model: Path, options: Mapping[str, Any], samples: Sequence[Any], wanted: Sequence[Any]
) -> Bound:
    """Return a session that has run; with a CUDA graph if all of it runs on the device.

    Samples of several shapes are none of one graph.
    """
    from gpu_judge import CUDA, TF32_OFF, opened

    options = options or TF32_OFF
    own = {**options.get("provider_options", {}), "enable_cuda_graph": "1"}
    shapes = {tuple(value.shape for value in sample.values()) for sample in samples}

    def bound(options: Mapping[str, Any], *, graph: bool) -> Bound:
        session = opened(model, options, CUDA)
        found = Bound(session=session, samples=samples, wanted=wanted, graph=graph)
        found.bind(samples[0], wanted[0])
        for _ in range(3):
            found.run()
        return found

    if len(shapes) == 1:
        # No graph where a node runs on the CPU, whatever the library says of it.
        with suppress(Exception):
            return bound({**options, "provider_options": own}, graph=True)
    return bound(options, graph=False)


def in_turn(running: Sequence[Bound]) -> list[list[float]]:
    """Return the median milliseconds of each in every round, so that clocks move all alike."""
    found: list[list[float]] = [[] for _ in running]
    for _ in range(ROUNDS):
        for times, bound in zip(found, running, strict=True):
            bound.run()
            took = []
            for _ in range(RUNS):
                begun = time.perf_counter()
                bound.run()
                took.append(1e3 * (time.perf_counter() - begun))
            times.append(statistics.median(took))
    return found


def _machine() -> Mapping[str, Any]:
    from gpu_job import gpu_query

    gpus = gpu_query("name", "driver_version") or []
    return {"gpus": gpus, "python": platform.python_version()}


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
