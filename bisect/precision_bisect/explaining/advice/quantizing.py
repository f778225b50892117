"""Other types in place of FP32; where 8 bits are short, channels of one size and other scales."""

from dataclasses import dataclass, replace
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from precision_bisect.errors import PrecisionBisectError, counted
from precision_bisect.explaining.advice.diagnosed_model import (
    Advising,
    DiagnosedModel,
    Editor,
    ModelChange,
)
from precision_bisect.explaining.diagnosis.causes.outliers import CHANNEL_RATIO
from precision_bisect.explaining.diagnosis.findings import Advice, Finding
from precision_bisect.graphs.graph import attribute
from precision_bisect.graphs.quantization.calibration import scales_for
from precision_bisect.graphs.typed.pinning import pin_formless
from precision_bisect.layer_table import ASSIGNED, FIXED
from precision_bisect.options import CalibrationName
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Search
from precision_bisect.runs.results.advised import EVERYWHERE, Tried

# What is tried: the entropy method takes more than a second for each tensor.
_METHODS: tuple[CalibrationName, ...] = ("minmax", "percentile")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Smoothed:
    """What a layer's input is divided by, and its weight then is.

    `factors` broadcasts against the input.
    """

    layer: str
    factors: NDArray[np.float32]
    weight: NDArray[np.float32]


def smoothing(net: DiagnosedModel) -> Advising:
    """Yield the kept layers of whose inputs few channels are far larger than the others.

    SmoothQuant (Xiao et al., ICML 2023, section 4, with alpha 0.5): input channels are divided by
    factors, and the rows of the weight multiplied by them. Powers of two change nothing in FP32.
    """
    smoothed = [one for finding in _hit(net) if (one := _smoothed(net, finding)) is not None]
    if not smoothed:
        return
    layers = [layer.layer for layer in smoothed]
    worst = max((net.by_name[name] for name in layers), key=_ratio)
    tried = yield from _with_smoothed(net, smoothed)
    yield Advice(
        id="smooth",
        title="Bring the channels to one size before quantizing (SmoothQuant)",
        text="Divide the large channels by a factor in the layer before, such as the scale of a "
        "norm, and multiply the rows of the weight that read them: in FP32 nothing changes.",
        layers=layers,
        evidence=f"channel {worst.figures['channel']} of {worst.figures['tensor']} reaches "
        f"{worst.figures['largest']:.3g}, {_ratio(worst):.0f} times as much as the median one"
        f"{tried.clause() if tried else ''}",
        tried=tried,
    )


def calibration(net: DiagnosedModel) -> Advising:
    """Yield another way to calibrate, where with it the layers that lack range pass."""
    lacking = [finding.layer for finding in net.findings.layers if not finding.cause.digits]
    hit = [name for name in lacking if name in net.kept]
    if net.case.pair.low != "int8" or not hit:
        return
    for method in _METHODS:
        if method == net.case.options.calibration:
            continue
        options = replace(net.case.options, calibration=method)
        scales = scales_for(net.case.model, net.case.pair, net.case.sets.judging, options)
        # Only the layers that lack range go low: another calibration gives the others no digits.
        tried = yield from net.tried(
            net.kept.difference(hit), ModelChange(what=method, scales=scales)
        )
        if tried is not None and tried.on_samples:
            yield Advice(
                id="calibration",
                title="Calibrate in another way",
                text=f"Search with --calibration {method}.",
                layers=hit,
                evidence=f"most is lost in {counted(len(hit), 'layer')} to scales that "
                f"{net.case.options.calibration} has found; with {method}{tried.clause()}",
                tried=tried,
            )
            return


def fp16_instead(net: DiagnosedModel) -> Advising:
    """Yield FP16 for the kept layers and all that is not quantized, where that passes."""
    if net.case.pair.high != "fp32" or not net.kept:
        return
    pair = Pair(low=net.case.pair.low, high="fp16")
    scales = scales_for(net.case.model, pair, net.case.sets.judging, net.case.options)
    change = ModelChange(what="fp16-kept", pair=pair, scales=scales)
    tried = yield from net.tried(net.kept, change, low=net.kept)
    if tried is not None and tried.on_samples:
        yield Advice(
            id="fp16-kept",
            title="Keep these layers in FP16 instead of FP32",
            text="Search with --high fp16, or name fp16 in place of fp32 in a ladder: what is not "
            "quantized takes half the memory.",
            layers=sorted(net.kept),
            evidence=f"with all that is not {pair.low} in FP16: {tried}",
            tried=tried,
        )


def bf16_instead(net: DiagnosedModel) -> Advising:
    """Yield BF16 for the kept layers, or for all layers, where it passes on the samples."""
    if net.case.pair != Pair(low="fp16", high="fp32"):
        return
    kept = [finding for finding in net.findings.layers if finding.layer in net.kept]
    if not kept or any(finding.cause.digits for finding in kept):
        return
    layers = [finding.layer for finding in kept]
    how = "Name bf16 in place of fp32" if net.on_ladder else "Search with --high bf16"
    kept_so = ModelChange(what="bf16-kept", pair=Pair(low="fp16", high="bf16"))
    high = yield from net.tried(layers, kept_so, low=layers)
    if high is not None and high.on_samples:
        yield Advice(
            id="bf16-kept",
            title="Keep these layers in BF16 instead of FP32",
            text=f"{how}: BF16 has the range of FP32 at half its size.",
            layers=layers,
            evidence=f"range is short here, not digits; kept in BF16: {high}",
            tried=high,
        )
    if net.on_ladder:
        return
    low = yield from net.tried(
        [], ModelChange(what=EVERYWHERE, pair=Pair(low="bf16", high="fp32"))
    )
    if low is not None and low.on_samples:
        exclusions = {layer.exclusion for layer in net.case.model.table.layers} - {None}
        free = exclusions.isdisjoint((*ASSIGNED, *FIXED))
        every = "every layer" if free else "every layer that can change"
        yield Advice(
            id=EVERYWHERE,
            title=f"Run {'the whole model' if free else every} in BF16",
            text="Search with --low bf16, where the hardware has it.",
            layers=layers,
            evidence=f"{every} in BF16: {low}",
            tried=low,
        )


def _hit(net: DiagnosedModel) -> list[Finding]:
    """Return the kept layers that lose most to their input, in which a channel stands out."""
    return [
        finding
        for finding in net.findings.layers
        if finding.layer in net.kept
        and finding.figures.get("largest_in") == "input"
        and _ratio(finding) >= CHANNEL_RATIO
    ]


def _ratio(finding: Finding) -> float:
    ratio = finding.figures.get("channel_ratio")
    return float(ratio) if ratio is not None and isfinite(ratio) else 0.0


def _smoothed(net: DiagnosedModel, finding: Finding) -> _Smoothed | None:
    """Return the factors of a layer; None where its weight is not constant, or has groups."""
    node = net.view.by_name[finding.layer]
    weight = net.view.array(node.input[1])
    activations = net.watched.magnitudes.get(node.input[0])
    group, transposed = attribute(node, "group"), attribute(node, "transB")
    if (
        weight is None
        or activations is None
        or activations.channels is None
        or (group and group.i > 1)
    ):
        return None
    convolution = node.op_type == "Conv"
    if not convolution and (node.op_type == "ConvTranspose" or weight.ndim != 2):
        return None
    rows = 1 if convolution or (transposed and transposed.i) else 0
    others = tuple(i for i in range(weight.ndim) if i != rows)
    weight_maxima = np.abs(weight).max(axis=others)
    both = (activations.channels > 0) & (weight_maxima > 0)
    quotient = np.divide(
        activations.channels, weight_maxima, out=np.ones_like(weight_maxima), where=both
    )
    # Half the distance in exponents is alpha 0.5.
    factors = np.exp2(np.rint(np.log2(quotient) / 2)).astype(np.float32)
    # The same factor everywhere moves scales and nothing else.
    if (factors == factors[0]).all():
        return None
    along = [-1 if i == rows else 1 for i in range(weight.ndim)]
    behind = [-1, *[1] * (weight.ndim - 2)] if convolution else [-1]
    return _Smoothed(
        layer=finding.layer,
        factors=factors.reshape(behind),
        weight=(weight * factors.reshape(along)).astype(np.float32),
    )


def _with_smoothed(net: DiagnosedModel, smoothed: list[_Smoothed]) -> Search[Tried | None]:
    """Try the model with these layers smoothed, calibrated again, and not kept."""
    editor = Editor(net.case.model.proto)
    for layer in smoothed:
        node = net.view.by_name[layer.layer]
        editor.scale_reads(node.input[0], {layer.layer}, np.float32(1) / layer.factors)
        editor.replace(node.input[1], layer.weight, {layer.layer})
    try:
        model = pin_formless(net.loaded(editor.edited(), "smoothed"), net.case.pair)
        scales = scales_for(model, net.case.pair, net.case.sets.judging, net.case.options)
    except PrecisionBisectError:
        return None
    kept_layers = net.kept.difference(layer.layer for layer in smoothed)
    change = ModelChange(what="smooth", model=model, scales=scales)
    return (yield from net.tried(kept_layers, change))
