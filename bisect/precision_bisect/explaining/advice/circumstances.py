"""What does not lie in the layers: inputs, what the file already rounds, builders' warnings."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from precision_bisect.errors import PrecisionBisectError, counted
from precision_bisect.explaining.advice.case import DiagnosedModel, ModelChange
from precision_bisect.explaining.advice.editing import Editor
from precision_bisect.explaining.advice.other_form import searched
from precision_bisect.explaining.diagnosis.findings import Advice, listed
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.layer_table import Exclusion, Layer
from precision_bisect.runs.results.advised import ALREADY_ROUNDED, Tried

_ROUNDING = (Exclusion.ALREADY_LOW, Exclusion.QUANTIZATION)


def never_reached(case: DiagnosedModel) -> Iterator[Advice]:
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
            evidence=f"{listed(layers)} gave nothing but {value} in all "
            f"{counted(len(case.samples), 'sample')}",
        )


def already_rounded(case: DiagnosedModel) -> Iterator[Advice]:
    """Yield the kept layers beside which the file itself rounds, or that it breaks by itself.

    Nothing where the FP32 form was tried, and needs as many layers as the file has kept.
    """
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
    told = case.findings.file
    breaks = told is not None and (bool(told.broken) or not case.findings.answered)
    if layers or breaks:
        tried = _unrounded(case, layers)
        if tried is not None and not breaks and tried.kept >= len(case.kept):
            return
        beside = f"{listed(layers)}: the file itself rounds beside it, at {beside}"
        said = told.words if told is not None and breaks else beside
        yield Advice(
            id=ALREADY_ROUNDED,
            title="Search the FP32 model: this one already rounds here",
            text="Export the model before it was converted or quantized, and search that one.",
            layers=layers,
            evidence=f"{said}{tried.clause() if tried else ''}",
            tried=tried,
        )


def _unrounded(case: DiagnosedModel, layers: Sequence[str]) -> Tried | None:
    """Return what the model comes to without its own rounding, None where that cannot be tried.

    Its reference is its own: without quantization it computes something else.
    """
    editor = Editor(case.model.proto)
    editor.without_quantization()
    try:
        model = case.loaded(editor.edited(), "unrounded")
        reference = reference_outputs(model, case.samples, case.threads)
    except (PrecisionBisectError, OSError):
        return None
    change = ModelChange(model=model, reference=reference)
    tried = case.tried(case.kept.difference(layers), change)
    if tried is not None and tried.holds:
        return tried
    return searched(case, change) or tried


def _rounds(case: DiagnosedModel, layer: Layer) -> bool:
    """Tell whether the file has a node compute or convert in a lower type than FP32."""
    if layer.exclusion is not Exclusion.CAST:
        return layer.exclusion in _ROUNDING
    node = case.wiring.nodes[layer.name]
    return not case.model.low_tensors.keys().isdisjoint((*node.input, *node.output))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Warning:
    """A kind of remark: the pattern of its texts, and what to do about it."""

    id: str
    pattern: re.Pattern[str]
    text: str


_NORM = _Warning(
    id="tensorrt-layernorm",
    pattern=re.compile(r"[Rr]unning layernorm|Detected layernorm nodes"),
    text="Export at opset 17 or newer so that the norm is one operator, or search with "
    "--fuse-norms.",
)
_WEIGHTS = _Warning(
    id="tensorrt-weights",
    pattern=re.compile(r"weights.*(affected|outside the range)"),
    text="Train with weight decay or rescale these weights, or keep the layers that read them.",
)
_DISOBEYED = _Warning(
    id="tensorrt-disobeyed",
    pattern=re.compile(r"No implementation.*obeys|non-conforming|No valid obedient"),
    text="Build model.mixed.onnx strongly typed: types are no requests there.",
)


def builder_warnings(case: DiagnosedModel) -> Iterator[Advice]:
    """Yield what TensorRT warned of in any build, with the layers that it named.

    Where it named none, those that it can mean.
    """
    norms = [name for each in case.decomposed if each.squares for name in each.members]
    heavy = [
        each.layer for each in case.findings.layers if each.figures.get("largest_in") == "weight"
    ]
    for kind, meant in ((_NORM, norms), (_WEIGHTS, heavy), (_DISOBEYED, ())):
        # Builds differ in their counts, which make no new remark.
        notes = {re.sub(r"\d+", "", n): n for n in case.notes if kind.pattern.search(n)}
        if notes:
            yield Advice(
                id=kind.id,
                title="What TensorRT warned of",
                text=kind.text,
                layers=_named(case, kind) or _kept(case, meant),
                evidence=f"the builder says: {'; '.join(notes.values())}",
            )


def _named(case: DiagnosedModel, kind: _Warning) -> list[str]:
    """Return the layers that remarks of this kind name, or whose weights they list."""
    listed = {
        name for each in case.listed if kind.pattern.search(each.note) for name in each.names
    }
    readers = {
        node.name for node in case.wiring.nodes.values() if not listed.isdisjoint(node.input)
    }
    weightless = (re.sub(r"\.(weight|bias)$", "", name) for name in sorted(listed))
    text = "\n".join((*(n for n in case.notes if kind.pattern.search(n)), *weightless))
    return [name for name in case.by_name if name in readers or _names(text, name)]


def _kept(case: DiagnosedModel, names: Sequence[str]) -> list[str]:
    return [name for name in names if name in case.kept]


def _names(text: str, name: str) -> bool:
    """Tell whether a text mentions a layer's name as a whole word."""
    return re.search(rf"(?<![\w./]){re.escape(name)}(?![\w./])", text) is not None
