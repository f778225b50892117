"""A case: a variant of a model, with all that a verdict on a plan of it rests on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.judging.inputs.loops import PLAIN, Loop
from precision_bisect.options import Options
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Comparator, Sample
from precision_bisect.search.sample_sets import SampleSets
from precision_bisect.trial import CaseName, SampleSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model variant with its types, samples, reference, judge and target.

    `options` name the pair of types, the targets, and how many threads ONNX Runtime gets. `sets`
    has the samples with their FP32 outputs, which an `optimised` session computes or a plain one.
    `scales` are those of everything that is quantized. `at_once` samples are emulated at the same
    time, which uses the other cores where layers are too small for several threads. A `loop` runs
    a sample. A `variant` of the run's own model has its name, which its trials bear.
    """

    options: Options
    model: Model
    sets: SampleSets
    comparator: Comparator
    scales: Scales = field(default_factory=Scales)
    optimised: bool = True
    at_once: int = 1
    loop: Loop = PLAIN
    variant: CaseName = ""

    def named(self, case: CaseName) -> CaseName:
        """Return the name of a case beside this one in which something else differs, too."""
        return ",".join(filter(None, (case, self.variant)))

    @property
    def pair(self) -> Pair:
        """The types that the plans choose from."""
        return Pair(low=self.options.low, high=self.options.high)

    @property
    def samples(self) -> Sequence[Sample]:
        """The samples that may choose."""
        return self.sets[SampleSet.JUDGED][0]

    @property
    def fed(self) -> Sequence[Sample]:
        """What single inferences are fed: what looks inside of the model looks at these."""
        return self.sets.steps or self.samples

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the first sample, by input."""
        return {name: array.shape for name, array in self.samples[0].items()}

    @property
    def reference(self) -> Sequence[Sample]:
        """Their FP32 outputs."""
        return self.sets.reference


def single_runs(case: Case) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """Return feeds of single inferences, and their FP32 outputs. Raises ModelError."""
    if case.loop.plain:
        return case.samples, case.reference
    return case.fed, reference_outputs(case.model, case.fed, case.options.threads)
