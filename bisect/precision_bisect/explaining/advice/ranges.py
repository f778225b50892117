"""Where only the range is short, BF16 has it at half the cost of FP32."""

from collections.abc import Iterator

from precision_bisect.explaining.advice.case import DiagnosedModel, ModelChange
from precision_bisect.explaining.diagnosis.findings import Advice
from precision_bisect.precisions import Pair
from precision_bisect.runs.results.advised import EVERYWHERE

_RANGE = frozenset(("overflow", "underflow"))


def bf16_instead(case: DiagnosedModel) -> Iterator[Advice]:
    """Yield BF16 for the kept layers, or for all layers, where it passes on the samples."""
    if case.pair != Pair(low="fp16", high="fp32"):
        return
    kept = [each for each in case.findings.layers if each.layer in case.kept]
    if not kept or not all(each.cause in _RANGE for each in kept):
        return
    layers = [each.layer for each in kept]
    how = "Name bf16 in place of fp32" if case.on_ladder else "Search with --high bf16"
    high = case.tried(layers, ModelChange(pair=Pair(low="fp16", high="bf16")))
    if high is not None and high.on_samples:
        yield Advice(
            id="bf16-kept",
            title="Keep these layers in BF16 instead of FP32",
            text=f"{how}: BF16 has the range of FP32 at half its size.",
            layers=layers,
            evidence=f"range is short here, not digits; kept in BF16: {high}",
            tried=high,
        )
    if case.on_ladder:
        return
    low = case.tried([], ModelChange(pair=Pair(low="bf16", high="fp32")))
    if low is not None and low.on_samples:
        yield Advice(
            id=EVERYWHERE,
            title="Run the whole model in BF16",
            text="Search with --low bf16, where the hardware has it.",
            layers=layers,
            evidence=f"every layer in BF16: {low}",
            tried=low,
        )
