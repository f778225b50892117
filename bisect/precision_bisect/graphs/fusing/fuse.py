"""`--fuse-norms`: the model with its norms and activations fused, as a file to search.

The opset is raised no further than needed, and only if onnx converts the model soundly. In FP32,
on the inputs of the run, the new model must give what the old one gives.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from precision_bisect.errors import ModelError, RefusedError, counted
from precision_bisect.graphs.convert import at_least_opset
from precision_bisect.graphs.fp32_outputs import MOST_DIFFERENT, distances, reference_outputs
from precision_bisect.graphs.fusing.found import SINCE, Decomposed
from precision_bisect.graphs.fusing.fused_graph import fused, is_fusable
from precision_bisect.graphs.fusing.norms import find_decomposed
from precision_bisect.graphs.graph import opset
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.typed.model_files import save_rewritten
from precision_bisect.protocols import Sample
from precision_bisect.runs.runfolder import FUSED_MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """The fused model, its largest difference in FP32, and what was done, as a sentence."""

    model: Model
    difference: float
    remark: str


def fuse(
    model: Model, samples: Sequence[Sample], reference: Sequence[Sample], work: Path
) -> Fused:
    """Return the model with everything fused that can be; its file lies in `work`.

    `reference` has the FP32 outputs of the samples. Raises ModelError where there is nothing to
    fuse, RefusedError for a model that computes in 16 bits or that fusing would change.
    """
    if model.low_tensors:
        raise RefusedError(
            f"--fuse-norms is for FP32 models, and {model.path} has 16-bit tensors",
            "give the FP32 model, or leave the flag out",
        )
    every = [each for each in find_decomposed(model) if is_fusable(each)]
    if not every:
        raise ModelError(
            f"{model.path} has no norm, Softmax or Gelu in pieces", "leave --fuse-norms out"
        )
    raised, taken, remark = _raised(model, every)
    path = work / FUSED_MODEL
    proto, weights = fused(raised, taken)
    new = save_rewritten(proto, weights, path, "the fused model")
    difference = _difference(new, samples, reference)
    counts = Counter(each.kind for each in taken)
    what = ", ".join(f"{number} {kind}" for kind, number in counts.items())
    layers = f"{counted(len(model.table.candidates), 'layer')} become {len(new.table.candidates)}"
    told = f"fused {what}: {layers}; in FP32 the outputs change by at most {difference:.2g} of "
    return Fused(model=new, difference=difference, remark=f"{told}the largest value{remark}")


def _raised(model: Model, every: Sequence[Decomposed]) -> tuple[Model, list[Decomposed], str]:
    """Return the model at the newest opset that helps, what that allows, and a remark."""
    have = opset(model.proto)
    wanted = sorted({SINCE[each.kind] for each in every}, reverse=True)
    why = ""
    for target in wanted:
        allowed = [each for each in every if SINCE[each.kind] <= max(target, have)]
        # Conversion may fail for operators that have nothing to do with norms; then fewer are
        # fused.
        try:
            raised = at_least_opset(model, target, allowed[-1].kind)
        except ModelError as error:
            why = error.message
            continue
        left = len(every) - len(allowed)
        remark = f"; opset {have} became {target}" if target > have else ""
        remark += f"; {left} more were left as they are: {why}" if left else ""
        return raised, allowed, remark
    raise ModelError(f"--fuse-norms cannot raise the opset: {why}", "export at opset 17 or newer")


def _difference(new: Model, samples: Sequence[Sample], reference: Sequence[Sample]) -> float:
    """Return the largest difference over all outputs. Raises RefusedError beyond the bound."""
    pairs = zip(reference_outputs(new, samples), reference, strict=True)
    worst = max(max(distances(*pair).values()) for pair in pairs)
    # `not <=`: a NaN refuses, too.
    if not worst <= MOST_DIFFERENT:
        raise RefusedError(
            f"the fused model differs from the original by {worst:.2g} of an output's largest "
            f"value in FP32, more than {MOST_DIFFERENT:g}",
            "leave --fuse-norms out, and report the model's norm",
        )
    return worst
