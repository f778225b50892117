"""Layers that a search does not decide on, since they have no form in one of the types."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from precision_bisect.errors import ModelError
from precision_bisect.graphs.constant_values import OutOfRange
from precision_bisect.graphs.graph import opset
from precision_bisect.graphs.interface import AT_THE_BORDER
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.quantization.calibration import not_quantizable
from precision_bisect.graphs.typed.rewrite import writer_of
from precision_bisect.layer_table import Exclusion, LayerName, assigned
from precision_bisect.plan import Plan
from precision_bisect.precisions import Form, HalfName, HighName, LowName, Pair, PrecisionName
from precision_bisect.protocols import Described
from precision_bisect.settings.targets import LABELS, low_kernels


class NothingLow(ModelError):
    """A model in which no candidate can run low."""


def pin(model: Model, reasons: Mapping[LayerName, str], fixed: Form | None = None) -> Model:
    """Return the model in which these layers are no candidates any more, each for its reason."""
    return replace(model, table=model.table.pinned(reasons, fixed)) if reasons else model


def pin_formless(model: Model, pair: Pair) -> Model:
    """Return the model without the candidates that have no form in one of the pair's types.

    Those without a low form stay high, those without a high one FP32. What shares the memory of an
    input of the network has the type of that.
    """
    model = _pin_at_border(model)
    if pair.high == "fp16" or pair.high == "bf16":
        # Only a high type of 16 bits can lack a form; then FP32 is what is left.
        model = pin(model, _formless(model, pair.high), Form(stored="fp32"))
    if pair.low == "int8" or pair.low == "fp8":
        return pin(model, not_quantizable(model, pair.low))
    return pin(model, _formless(model, pair.low))


def _pin_at_border(model: Model) -> Model:
    for node in model.proto.graph.node:
        if node.op_type in AT_THE_BORDER:
            low = model.interface.inputs.get(node.input[0])
            reason = (
                f"TensorRT-RTX takes no Cast before or behind the cache of {node.op_type}; that "
                "input and output of the network keep their type with --io-types, too"
            )
            stored = low.name if low is not None else "fp32"
            model = pin(model, {LayerName(node.name): reason}, Form(stored=stored))
    return model


def pin_unbuildable(model: Model, backend: Described, low: LowName) -> Model:
    """Return the model without the candidates that a backend cannot run low.

    Raises NothingLow where none is left.
    """
    model = pin(model, backend.unbuildable())
    refuse_nothing_low(model, low, "list them with `precision-bisect layers`")
    return model


def refuse_nothing_low(model: Model, low: LowName, hint: str) -> None:
    """Raise NothingLow, with the hint, where no candidate is left."""
    if not model.table.candidates:
        name, reason = next(iter(pinned_layers(model).items()))
        raise NothingLow(f"no layer of {model.path} can run in {low}: {name}: {reason}", hint)


def without_cuda_kernel(model: Model, pair: Pair, plan: Plan) -> dict[LayerName, str]:
    """Return the layers that a plan runs in a type without a kernel in ONNX Runtime on CUDA.

    In network order, each with the reason and the cure. Raises what `TypedWriter` does.
    """
    table, layers = low_kernels()["opsets"], {layer.name: layer for layer in model.table.layers}
    rows: list[tuple[LayerName, str, PrecisionName, Sequence[int | None] | None]] = [
        (name, layers[name].op_type, kind, table[kind][layers[name].op_type])
        for name, kind in assigned(model.table, pair, plan).items()
        if layers[name].domain in ("", "ai.onnx") and layers[name].op_type in table.get(kind, ())
    ]
    version = opset(model.proto)
    if "bf16" in (pair.low, pair.high) and any(opsets for *_, opsets in rows):
        # As it is written: BF16 may have the file converted.
        version = writer_of(model, pair).opset
    return {
        name: _no_kernel(op_type, kind, opsets, version)
        for name, op_type, kind, opsets in rows
        if opsets is None or not (opsets[0] or 0) <= version <= (opsets[1] or version)
    }


def _no_kernel(
    op_type: str, kind: PrecisionName, opsets: Sequence[int | None] | None, version: int
) -> str:
    where, cure, low = "", "", kind.upper()
    if opsets is not None:
        first, last = opsets
        if last is not None and version > last:
            where = f" since opset {last + 1}"
            cure = f"; export at opset {last}, and it runs in {low}"
        else:
            where = f" before opset {first}"
            cure = f"; raise the opset to {first} (onnx.version_converter), and it runs in {low}"
    # The CPU provider computes FP16 in FP32, and has no kernel in BF16 either.
    then = "it would run on the CPU" if kind == "fp16" else "the file would not open"
    return f"no {low} kernel of {op_type}{where} on {LABELS['onnxruntime']}: {then}{cure}"


def pinned_layers(model: Model, low: Form | None = None) -> dict[str, str]:
    """Return the layers that have no form to choose, each with its reason, in network order.

    Those that are fixed to the form `low` are not among them.
    """
    return {
        str(layer.name): layer.detail
        for layer in model.table.layers
        if layer.exclusion is Exclusion.PINNED and (layer.fixed is None or layer.fixed != low)
    }


def pinned_remarks(model: Model, high: HighName) -> list[str]:
    """Return one sentence for all layers that were pinned to the same type for the same reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for layer in model.table.layers:
        if layer.exclusion is Exclusion.PINNED:
            kind = layer.fixed.precision if layer.fixed else high
            groups.setdefault((kind.upper(), layer.detail), []).append(layer.name)
    return [
        f"{names[0]} stays {kind}: {reason}"
        if len(names) == 1
        else f"{len(names)} layers stay {kind}: {reason} (the first is {names[0]})"
        for (kind, reason), names in groups.items()
    ]


def may_run_high(backend: Described, low: LowName) -> str:
    """Return a sentence on low layers that the backend may run in FP32 all the same, or ""."""
    if backend.versions().get("typing") != "weak":
        return ""
    return (
        f"weak typing allows {low.upper()} in the layers that are not kept, and asks for it in "
        "none: TensorRT runs those in FP32 where that is faster"
    )


def beyond_remark(beyond: Sequence[OutOfRange], pair: Pair) -> str:
    """Return a sentence about weights that become infinite in the low type, "" for none."""
    if not beyond:
        return ""
    worst = max(beyond, key=lambda weight: weight.largest)
    count = f"{len(beyond)} weights leave" if len(beyond) > 1 else "one weight leaves"
    return f"{count} the range of {pair.low}, the largest is {worst.largest:.3g} in {worst.name}"


def _formless(model: Model, kind: HalfName) -> Mapping[LayerName, str]:
    """Return the candidates without a form in a 16-bit type, with the reasons."""
    return writer_of(model, Pair(low=kind, high="fp32")).not_low
