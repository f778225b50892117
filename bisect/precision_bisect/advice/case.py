"""What an adviser looks at, and how it tries out what it would say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx

from precision_bisect.backends.emulation.backend import EmulatedBackend
from precision_bisect.diagnosis.diagnose import MOST_EMULATED
from precision_bisect.diagnosis.findings import Finding, Findings
from precision_bisect.diagnosis.watching import Watched
from precision_bisect.diagnosis.wiring import Wiring
from precision_bisect.errors import PrecisionBisectError
from precision_bisect.fusing.find import find_decomposed
from precision_bisect.fusing.found import Decomposed
from precision_bisect.fusing.view import View
from precision_bisect.lowtypes import LOW_TYPES, LowType
from precision_bisect.model.load import Model, load_model
from precision_bisect.model.weights import Weights
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import BackendFailure, Comparator, Judgement, Sample
from precision_bisect.trial import Verdict
from precision_bisect.typed.files import save_typed
from precision_bisect.typed.graph import TypedGraph, TypedWeight

LARGEST_TRIED_BYTES = 2**30
"""Models with more weights are not tried out: each trial holds them once more, rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What a change came to: the error on the tolerance's scale, and whether it passed."""

    error: float | None
    passed: bool

    def __str__(self) -> str:
        figure = "no figure" if self.error is None else f"error {self.error:.3g}"
        return f"{figure}, which {'passes' if self.passed else 'fails'}"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A diagnosed model; `samples` and `reference` are those that judge.

    `notes` are the builder's remarks, `work` an empty folder for models that are tried out,
    `threads` ONNX Runtime's.
    """

    model: Model
    pair: Pair
    findings: Findings
    watched: Watched
    samples: Sequence[Sample]
    reference: Sequence[Sample]
    comparator: Comparator
    work: Path
    notes: Sequence[str] = ()
    threads: int = 0

    @property
    def low(self) -> LowType:
        """The low type."""
        return LOW_TYPES[self.pair.low]

    @cached_property
    def by_name(self) -> Mapping[str, Finding]:
        """The findings by layer."""
        return {each.layer: each for each in self.findings.layers}

    @cached_property
    def kept(self) -> frozenset[str]:
        """The kept layers; where nothing was searched, all that were explained."""
        layers = self.findings.layers
        return frozenset(one.layer for one in layers if one.kept) or frozenset(self.by_name)

    @cached_property
    def decomposed(self) -> Sequence[Decomposed]:
        """What the export took apart."""
        return find_decomposed(self.model)

    @cached_property
    def view(self) -> View:
        """The graph, for looking at operands."""
        return View(self.model)

    @cached_property
    def wiring(self) -> Wiring:
        """The graph, for looking at readers."""
        return Wiring(self.model)

    def tried(
        self, kept: Sequence[str], *, model: Model | None = None, pair: Pair | None = None
    ) -> Tried | None:
        """Emulate a plan that keeps these layers; None where it cannot be, or is too large."""
        model, pair = model or self.model, pair or self.pair
        weights = sum(array.nbytes for array in model.weights.values())
        if weights > LARGEST_TRIED_BYTES or len(model.table.candidates) > MOST_EMULATED:
            return None
        names = {str(name): i for i, name in enumerate(model.table.names)}
        plan = Plan.of(names[name] for name in kept if name in names)
        try:
            backend = EmulatedBackend(model, pair.low, self.threads, pair.high)
            outputs = [backend.evaluate(plan, sample) for sample in self.samples]
        except (PrecisionBisectError, BackendFailure):
            return None
        found: Judgement = self.comparator.judge(outputs, self.reference)
        return Tried(error=found.error, passed=found.verdict is Verdict.PASS)

    def loaded(self, proto: onnx.ModelProto, weights: Weights, name: str) -> Model:
        """Return a changed model as if read from a file. Raises ModelError, OSError."""
        path = self.work / f"{name}.onnx"
        stored = {key: TypedWeight(source=w, dtype=w.dtype) for key, w in weights.items()}
        save_typed(TypedGraph(proto=proto, weights=stored, guarded=()), path)
        return load_model(path)
