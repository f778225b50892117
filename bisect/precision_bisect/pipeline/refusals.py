"""What no run can search: models without layers to decide on, judges without the figures asked."""

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from precision_bisect.errors import ModelError, UsageError, counted
from precision_bisect.graphs.load import Model
from precision_bisect.layer_table import Exclusion, Layer
from precision_bisect.options import Options
from precision_bisect.protocols import Comparator, Strategy
from precision_bisect.search.precision_curve import drawable

# So many reasons are told why a model has nothing to decide on, the most frequent.
_REASONS = 3


def refuse_for_judge(options: Options, comparator: Comparator, *, each: bool) -> None:
    """Raise UsageError for figures that the judge has not; `each` sample may have its own."""
    if options.risk is not None and not each:
        raise UsageError(
            "--risk needs the error of each sample, and this check judges all of them together",
            "leave it out, or choose a --metric",
        )
    if options.until != "answer" and not drawable(comparator.tolerance):
        raise UsageError(
            f"a run that ends with the {options.until} needs errors as figures and a tolerance "
            "above zero",
            "let the --check return a figure, or search for the answer",
        )


def refuse_many(options: Options, strategy: Strategy, layers: int) -> None:
    """Raise UsageError for more layers than the strategy takes."""
    if strategy.largest is not None and layers > strategy.largest:
        raise UsageError(
            f"--strategy {strategy.name} takes at most {counted(strategy.largest, 'layer')}, "
            f"{options.model} has {layers}",
            "choose --strategy guided",
        )


def refuse_sequences(model: Model) -> None:
    """Raise ModelError for an input that is no tensor: neither engines nor files take one."""
    for value in model.proto.graph.input:
        kind = str(value.type.WhichOneof("value")).removesuffix("_type")
        if kind in ("sequence", "map"):
            raise ModelError(
                f"input {value.name!r} is a {kind}, and only tensors are supported",
                "export the model with one input for each tensor",
            )


def nothing_to_decide(path: Path, layers: Sequence[Layer]) -> ModelError:
    """Return the error for a model without FP32 layers: what its nodes are instead."""
    counts = Counter(layer.exclusion for layer in layers if layer.exclusion)
    reasons = [f"{reason} ({n})" for reason, n in counts.most_common(_REASONS)]
    converted = counts.keys() & {Exclusion.QUANTIZATION, Exclusion.DOUBLE}
    return ModelError(
        f"{path} has no FP32 layers to decide on; its nodes: {', '.join(reasons) or 'none'}",
        "give the FP32 model, not a converted one"
        if converted
        else f"`precision-bisect layers {shlex.quote(str(path))}` lists each with its reason",
    )
