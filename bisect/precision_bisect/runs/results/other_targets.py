"""What becomes of an answer elsewhere, in `result.json`: other targets, and other inputs."""

from collections.abc import Sequence
from dataclasses import dataclass

from precision_bisect.runs.typed_json import Count
from precision_bisect.settings.targets import Inside, TargetName
from precision_bisect.trial import Figure, Stability


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What a target stores inside an operator, and in how many of the layers that run low."""

    op_type: str
    inside: Inside
    layers: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTargets:
    """The answer on `targets` that compute the model alike, and in another way than its own.

    `passed` is None where it was not evaluated; `message` says why. `error` and `stability` are as
    in `Result`, on all samples and on copies of them. Where low layers `lack_kernel` there, so
    many, nothing is evaluated.
    """

    targets: Sequence[TargetName]
    passed: bool | None
    error: Figure | None = None
    stability: Stability | None = None
    stored: Sequence[Stored] = ()
    message: str = ""
    lack_kernel: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerSum:
    """The sums inside a layer that an engine would lose which adds in the low type.

    `partial` is the largest partial sum, in the order of the reduced axis or, of products, in
    the worst one; `absolute` the largest sum of absolute values, `result` the largest result.
    """

    layer: str
    partial: Figure
    absolute: Figure
    result: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class WithTf32:
    """What stays FP32 as TensorRT and ONNX Runtime compute it unless told otherwise: in TF32.

    `fp32_error` and `fp32_passed` are of every layer high, `error` and `passed` of the answer;
    None for what was not evaluated, and `message` says why. A `forecast` of the answer is far over
    the limit, and was not built. By the spread of its errors FP32 may be over on `fp32_unseen`
    of unseen inputs (a share; None where that says nothing). On an engine it takes `fp32_ms`, and
    the answer is `speedup` times as fast, both with TF32, and in turns if they are of one model.
    """

    fp32_passed: bool | None = None
    fp32_error: Figure | None = None
    fp32_unseen: Figure | None = None
    fp32_ms: float | None = None
    passed: bool | None = None
    error: Figure | None = None
    speedup: float | None = None
    forecast: bool = False
    message: str = ""

    @property
    def holds(self) -> bool:
        """Whether both are within the tolerance."""
        return bool(self.fp32_passed and self.passed)

    @property
    def fp32_wins(self) -> bool:
        """Whether FP32 is within the tolerance, and measured to be as fast as the answer."""
        return bool(self.fp32_passed) and self.speedup is not None and self.speedup <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRange:
    """An input on whose size the error of an operator depends, and what its range came to.

    The `operators` and their `layers` are empty for an input that only --range names.

    The samples hold values from `samples[0]` to `samples[1]`; with them a layer reads at most
    `reads`, where the low type has steps of `step`. `range` is what --range says, or
    the data type; None where neither does. At its ends it `reads_at_ends` at most. Of `variants`,
    made of the samples with the input at an end, so many have `failed`, `error` being the largest;
    `passed` is None where none was tried.
    """

    input: str
    operators: Sequence[str]
    layers: Sequence[str]
    samples: Sequence[Figure]
    reads: Figure
    step: Figure
    range: Sequence[Figure] | None = None
    reads_at_ends: Figure | None = None
    step_at_ends: Figure | None = None
    passed: bool | None = None
    error: Figure | None = None
    variants: Count = 0
    failed: Count = 0


@dataclass(frozen=True, kw_only=True)
class ElsewhereSection:
    """How a plan does on other targets, how FP32 and it do with TF32, and at inputs' ends."""

    other_targets: Sequence[OnTargets] = ()
    tf32: WithTf32 | None = None
    input_ranges: Sequence[InputRange] = ()


@dataclass(frozen=True, kw_only=True)
class InnerSection:
    """What no sample feels inside of layers.

    `hidden_rows` are layers that read a row which a mask hides whole: engines differ in those.
    """

    inner_sums: Sequence[InnerSum] = ()
    hidden_rows: Sequence[str] = ()
