"""Models that ModelOpt AutoCast writes by the lists of runs, judged as `model.mixed.onnx` is.

    cd benchmarks
    python autocast_env.py
    python autocast.py --out results/autocast.json

The main command searches networks of the zoo, and the exports of the reported cases of
`tests/field_cases.py` are written for their plans. AutoCast gets the exported list, and for
comparison the layers above FP16 alone. The zoo's evaluator judges, on the judging samples and on
fresh ones. Exit code 1 tells that a model by the list is worse than the typed one.
"""

import argparse
import json
import math
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import autocast_env
import onnx
import onnxruntime

from precision_bisect.exports.autocast import write_autocast
from precision_bisect.exports.write import LAYERS_KEY, METADATA_PREFIX
from precision_bisect.runs.runfolder import AUTOCAST, MIXED_MODEL
from zoo.__main__ import Tool
from zoo.judge import Limit, Sample, error, evaluator, load, plain
from zoo.networks import NETWORKS, ROOT, prepare

sys.path.append(str(ROOT / "tests"))
from exports_models import export_of
from field_cases import FIELD_CASES
from models import save
from precision_bisect.exports.write import write_exports
from precision_bisect.runs.runfolder import RunFolder

DEFAULT = ("nafnet", "ppocr_det", "ppocr_rec", "magika", "minilm", "llama_decoder", "t5_encoder")
"""AutoCast 0.47 takes no silero_vad, with a list or without."""
WORSE = 1.5
"""An error larger than this many times the typed model's, and beyond the limit, is worse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A plan with its exports: the folder they are in, and what they are judged on."""

    name: str
    model: Path
    folder: Path
    limit: Limit
    bound: float
    samples: Mapping[str, Sequence[Sample]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The errors of one plan by kind of sample: of the typed model, and of AutoCast's.

    `layers` are those above FP16, `listed` the lines of the list. Where AutoCast failed, its
    message stands for the error.
    """

    name: str
    limit: Limit
    bound: float
    layers: int
    listed: int
    mixed: Mapping[str, float | str]
    by_list: Mapping[str, float | str]
    by_layers_alone: Mapping[str, float | str]

    @property
    def worse(self) -> bool:
        """Whether AutoCast's model by the list is no match for the typed one."""
        return any(
            isinstance(found, str) or float(found) > max(WORSE * float(own), self.bound)
            for found, own in zip(self.by_list.values(), self.mixed.values(), strict=True)
        )


def searched(networks: Sequence[str], cache: Path) -> Iterator[Judged]:
    """Yield the answers of the main command on networks of the zoo, at both limits."""
    tool = Tool(label="autocast", checkout=ROOT, python=sys.executable, arguments=())
    for name in networks:
        network, prepared = NETWORKS[name], prepare(name, cache)
        for bound in network.limits:
            out = cache / "runs" / f"{name}-{bound:g}-autocast"
            code, said = tool.run(network, prepared, bound, out)
            if not (out / AUTOCAST).exists():
                print(f"{name} {bound:g}: exit {code}, no list: {said.strip()[-200:]}")
                continue
            yield Judged(
                name=name,
                model=prepared / "model.onnx",
                folder=out,
                limit=network.limit,
                bound=bound,
                samples={kind: load(prepared / kind) for kind in ("judged", "fresh")},
            )


def reported(cache: Path) -> Iterator[Judged]:
    """Yield the cases that people reported, each with the plan that it has."""
    for name, make in FIELD_CASES.items():
        case, folder = make(), cache / "runs" / f"case-{name.replace(' ', '-')}"
        folder.mkdir(parents=True, exist_ok=True)
        path = save(case.model, folder)
        write_exports(RunFolder(folder), export_of(path, case.kept))
        yield Judged(
            name=f"case: {name}",
            model=path,
            folder=folder,
            limit="tol",
            bound=case.tolerance,
            samples={"judged": case.samples},
        )


def layers_above(mixed: Path) -> list[str]:
    """Return the layers that the typed model's metadata say are above FP16."""
    model = onnx.load(mixed, load_external_data=False)
    key = f"{METADATA_PREFIX}.precision"
    kept = {
        node.name for node in model.graph.node for each in node.metadata_props if each.key == key
    }
    told = next((each.value for each in model.metadata_props if each.key == LAYERS_KEY), "{}")
    return sorted(kept | set(json.loads(told)))


def measure(plan: Judged) -> Row:
    """Have AutoCast write its models, and judge them and the typed one."""
    layers = layers_above(plan.folder / MIXED_MODEL)
    lists = {
        "by_list": (plan.folder / AUTOCAST).read_text().split(),
        "by_layers_alone": write_autocast(layers).split(),
    }
    outs = {kind: plan.folder / f"autocast-{kind}.onnx" for kind in lists}
    jobs = [autocast_env.arguments(plan.model, outs[kind], lists[kind]) for kind in lists]
    failed = dict(zip(lists, autocast_env.convert(jobs), strict=True))
    errors = {kind: failed[kind] or errors_of(plan, outs[kind]) for kind in lists}
    return Row(
        name=plan.name,
        limit=plan.limit,
        bound=plan.bound,
        layers=len(layers),
        listed=len(lists["by_list"]),
        mixed=errors_of(plan, plan.folder / MIXED_MODEL),
        by_list=told(plan, errors["by_list"]),
        by_layers_alone=told(plan, errors["by_layers_alone"]),
    )


def errors_of(plan: Judged, model: Path) -> Mapping[str, float | str]:
    """Return the largest error of a model on each kind of sample; "inf" as text, as JSON needs."""
    reference, run = plain(plan.model), evaluator(model)
    errors = {
        kind: max(error(run(sample), reference(sample), plan.limit) for sample in samples)
        for kind, samples in plan.samples.items()
    }
    return {kind: str(found) if math.isinf(found) else found for kind, found in errors.items()}


def told(plan: Judged, errors: str | Mapping[str, float | str]) -> Mapping[str, float | str]:
    """Return errors by kind of sample, or for each kind why there is none."""
    return dict.fromkeys(plan.samples, errors) if isinstance(errors, str) else errors


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=list(DEFAULT))
    parser.add_argument("--cache", type=Path, default=Path("zoo-cache"), help="prepared networks")
    parser.add_argument("--out", type=Path, help="JSON file")
    given = parser.parse_args(argv)
    if autocast_env.python() is None:
        parser.error("there is no AutoCast: python benchmarks/autocast_env.py")
    cache, rows = given.cache.resolve(), list[Row]()
    for plan in chain(reported(cache), searched(given.networks, cache)):
        rows.append(measure(plan))
        print(json.dumps(asdict(rows[-1])), flush=True)
    document = {
        "versions": {
            "modelopt": autocast_env.VERSION,
            "onnx": onnx.__version__,
            "onnxruntime": onnxruntime.__version__,
            "python": platform.python_version(),
        },
        "rows": [asdict(row) for row in rows],
    }
    if given.out:
        given.out.write_text(json.dumps(document, indent=1) + "\n")
    return int(any(row.worse for row in rows))


if __name__ == "__main__":
    sys.exit(main())
