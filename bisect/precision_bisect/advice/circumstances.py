"""What does not lie in the layers: inputs, what the file already rounds, builders' warnings."""

import re
from collections.abc import Iterator, Sequence

from precision_bisect.advice.case import Case
from precision_bisect.diagnosis.findings import Advice
from precision_bisect.layer_table import Exclusion, Layer

_ROUNDING = (Exclusion.ALREADY_LOW, Exclusion.QUANTIZATION)
_MOST_NAMED = 3


def never_reached(case: Case) -> Iterator[Advice]:
    """Yield the candidates whose outputs had one value only, over all samples."""
    still = case.watched.still
    layers = [
        str(layer.name)
        for layer in case.model.table.candidates
        if layer.outputs and all(still.get(name) is not None for name in layer.outputs)
    ]
    if layers:
        values = {still[case.wiring.nodes[name].output[0]] for name in layers}
        value = f"{values.pop():g}" if len(values) == 1 else "one value"
        yield Advice(
            id="inputs",
            title="Give inputs that reach these layers",
            text="Add samples for which they compute something: what they need is not known.",
            layers=layers,
            evidence=f"{_listed(layers)} gave nothing but {value} in all "
            f"{len(case.samples)} samples",
        )


def already_rounded(case: Case) -> Iterator[Advice]:
    """Yield the kept layers beside which the file itself rounds."""
    rounding = {str(layer.name) for layer in case.model.table.layers if _rounds(case, layer)}
    layers, beside = [], ""
    for name, node in case.wiring.nodes.items():
        if name not in case.kept:
            continue
        makers = [case.wiring.maker.get(each, "") for each in node.input]
        found = [n for n in (*makers, *case.wiring.readers(node)) if n in rounding]
        if found:
            layers.append(name)
            beside = beside or found[0]
    if layers:
        yield Advice(
            id="already-rounded",
            title="Search the FP32 model: this one already rounds here",
            text="Export the model before it was converted or quantized, and search that one.",
            layers=layers,
            evidence=f"{_listed(layers)}: the file itself rounds beside it, at {beside}",
        )


def _rounds(case: Case, layer: Layer) -> bool:
    """Tell whether the file has a node compute or convert in a lower type than FP32."""
    if layer.exclusion is not Exclusion.CAST:
        return layer.exclusion in _ROUNDING
    node = case.wiring.nodes[layer.name]
    return not case.model.low_tensors.keys().isdisjoint((*node.input, *node.output))


def builder_warnings(case: Case) -> Iterator[Advice]:
    """Yield what TensorRT's remarks on the build say, with the layers that they concern."""
    norms = [name for each in case.decomposed if each.squares for name in each.members]
    heavy = [
        each.layer for each in case.findings.layers if each.figures.get("largest_in") == "weight"
    ]
    for note in case.notes:
        named = [name for name in case.by_name if _names(note, name)]
        if re.search(r"[Rr]unning layernorm|Detected layernorm nodes", note):
            yield _warning("tensorrt-layernorm", note, named or _kept(case, norms), _NORM)
        elif re.search(r"weights.*(affected|outside the range)", note):
            yield _warning("tensorrt-weights", note, named or _kept(case, heavy), _WEIGHTS)
        elif re.search(r"No implementation.*obeys|non-conforming|No valid obedient", note):
            yield _warning("tensorrt-disobeyed", note, named, _DISOBEYED)


_NORM = (
    "Export at opset 17 or newer so that the norm is one operator, or search with --fuse-norms."
)
_WEIGHTS = "Train with weight decay or rescale these weights, or keep the layers that read them."
_DISOBEYED = "Build model.mixed.onnx strongly typed: types are no requests there."


def _warning(id_: str, note: str, layers: list[str], text: str) -> Advice:
    return Advice(
        id=id_,
        title="What TensorRT warned of",
        text=text,
        layers=layers,
        evidence=f"the builder says: {note}",
    )


def _kept(case: Case, names: Sequence[str]) -> list[str]:
    return [name for name in names if name in case.kept]


def _names(note: str, name: str) -> bool:
    """Tell whether a remark mentions a layer's name as a whole word."""
    return re.search(rf"(?<![\w./]){re.escape(name)}(?![\w./])", note) is not None


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown
