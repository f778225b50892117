"""What runs on the target without this package: Polygraphy's command, and scripts of one file."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from precision_bisect.backends.backend_plugin import sample_shapes
from precision_bisect.exports.export import Export, NotWritable, engine_ranges, nodes_in_tensorrt
from precision_bisect.exports.one_file import one_file
from precision_bisect.graphs.graph import operators
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.typed.high_nodes import ToldNodes
from precision_bisect.graphs.types import shape_inputs
from precision_bisect.judging.comparators.metrics import METRICS
from precision_bisect.precisions import PrecisionName
from precision_bisect.protocols import Sample
from precision_bisect.runs.runfolder import (
    GOLDEN_INPUTS,
    GOLDEN_OUTPUTS,
    MIXED_MODEL,
    POLYGRAPHY_SCRIPT,
)
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.reading import CONFIG_SCRIPT

DECOMPOSABLE = "--decomposable-attentions"
"""Without this flag an Attention that has no fused kernel, such as one in FP32, is not built."""


def polygraphy_command(
    model: Model, settings: EngineSettings, limits: Mapping[str, Any], inputs: Sequence[Sample]
) -> str:
    """Return the command, to be given in the run folder.

    `limits` are the comparator's settings. Raises NotWritable where Polygraphy has no such limit.
    """
    words = ["polygraphy", "run", MIXED_MODEL, "--trt", "--strongly-typed"]
    words += ["--tf32"] if settings.in_tf32 else []
    words += [DECOMPOSABLE] if "Attention" in operators(model.proto.graph) else []
    if settings.plugins:
        words += ["--plugins", *(str(path.absolute()) for path in settings.plugins)]
    if settings.config_script is not None:
        words += [CONFIG_SCRIPT, settings.config_script]
    words += _profile(model, settings, inputs)
    words += ["--load-inputs", GOLDEN_INPUTS, "--load-outputs", GOLDEN_OUTPUTS, "--validate"]
    return shlex.join([*words, *_limits(limits)])


def _limits(limits: Mapping[str, Any]) -> Iterator[str]:
    """Yield the flags of the metric and its limits. Raises NotWritable."""
    name = limits.get("metric")
    exact: Mapping[str, float] = limits.get("classes", {})
    if exact and (name != "elementwise" or any(exact.values())):
        raise NotWritable("Polygraphy does not judge classes by a share, or beside this metric")
    metric = METRICS.get(str(name))
    if metric is None or metric.called is None:
        raise NotWritable(f"Polygraphy does not judge by {limits.get('check', name)}")
    if not metric.has_relative:
        bounds: Mapping[str, float] = limits["atol"]
        # Ours is a distance, Polygraphy's threshold a similarity.
        if name == "cosine":
            bounds = {output: 1.0 - limit for output, limit in bounds.items()}
        flag = f"--{metric.called.replace('_', '-')}-threshold"
        yield from ("--compare", metric.called, flag, *_by_output(bounds))
        return
    for key in ("atol", "rtol"):
        yield from (f"--{key}", *_by_output({**limits[key], **exact}))
    if metric.called:
        yield from ("--check-error-stat", metric.called)
    if name == "quantile":
        yield from ("--error-quantile", f"{limits['quantile']:.10g}")


def _by_output(bounds: Mapping[str, float]) -> Iterator[str]:
    """Yield one limit where it is that of all outputs, else OUTPUT:LIMIT for each."""
    if len(set(bounds.values())) == 1:
        yield f"{next(iter(bounds.values())):.10g}"
    else:
        yield from (f"{name}:{limit:.10g}" for name, limit in bounds.items())


def _profile(model: Model, settings: EngineSettings, inputs: Sequence[Sample]) -> Iterator[str]:
    """Yield the flags of the shapes of dynamic inputs: the user's, else those of the samples."""
    ranges = engine_ranges(model, settings, sample_shapes(model, inputs))
    if not ranges:
        return
    words = {
        flag: [f"{name}:[{','.join(map(str, pick(sizes)))}]" for name, sizes in ranges.items()]
        for flag, pick in (
            ("--trt-min-shapes", attrgetter("least")),
            ("--trt-opt-shapes", attrgetter("best")),
            ("--trt-max-shapes", attrgetter("most")),
        )
    }
    least, *others = words.values()
    values = shape_inputs(model.proto.graph, model.inputs)
    if all(other == least for other in others) and values.isdisjoint(ranges):
        # Without a profile Polygraphy takes these shapes for all three.
        words = {"--input-shapes": least}
    for flag, shapes in words.items():
        yield from (flag, *shapes)


_FLAGS = 'FLAGS = ""\n'
_KEPT = "KEPT: Mapping[str, Any] = {}\n"
_WITH_THEM = "WITH_THEM: Mapping[str, Any] = {}\n"


def write_polygraphy_script(
    kept: ToldNodes, others: ToldNodes, below: Iterable[PrecisionName], *also: str
) -> str:
    """Return a Python script that keeps layers, and other nodes with them, in the type of each.

    `below` are the precisions that the rest may have, `also` further flags. Names come from the
    model and are written as ASCII literals.
    """
    flags = " ".join([*(f"--{name}" for name in below), "--precision-constraints obey", *also])
    filled = {_FLAGS: f'"{flags}"', _KEPT: _literal(kept), _WITH_THEM: _literal(others)}
    return one_file(POLYGRAPHY_SCRIPT, filled)


def _literal(nodes: ToldNodes) -> str:
    lines = "".join(f"    {name!a}: {node!a},\n" for name, node in nodes.items())
    return f"{{\n{lines}}}" if nodes else "{}"


def polygraphy_constraints(export: Export) -> str:
    """Return the script for a plan. Raises NotWritable where there is nothing to be told."""
    nodes = nodes_in_tensorrt(export)
    if not nodes:
        raise NotWritable("no layer is kept")
    decided = {layer.name for layer in export.high_layers}
    kept = {name: node for name, node in nodes.items() if name in decided}
    others = {name: node for name, node in nodes.items() if name not in kept}
    # TensorRT allows TF32 in the layers that stay FP32; Polygraphy does not by itself.
    also = ["--tf32"] if export.settings.in_tf32 else []
    also += [DECOMPOSABLE] if "Attention" in operators(export.model.proto.graph) else []
    return write_polygraphy_script(kept, others, export.builder_types, *also)
