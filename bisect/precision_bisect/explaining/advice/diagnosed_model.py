"""What an adviser looks at, how it changes a graph, and how it tries out what it would say.

Beside the samples, what took no part in the search judges: samples held out, and copies.
"""

import hashlib
import math
import pickle
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.errors import PrecisionBisectError
from precision_bisect.explaining.advice.variants import Variants
from precision_bisect.explaining.diagnosis.diagnose import emulates
from precision_bisect.explaining.diagnosis.findings import Advice, Finding, Findings
from precision_bisect.explaining.diagnosis.watched_tensors import WatchedTensors
from precision_bisect.graphs.fp32_outputs import ReferenceSession
from precision_bisect.graphs.fusing.norms import Decomposed, find_decomposed
from precision_bisect.graphs.graph import Names, copied, refill
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES, QUANTIZED, LowType
from precision_bisect.graphs.node_views import View
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.typed.model_files import save_rewritten
from precision_bisect.layer_table import Exclusion
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Backend, Comparator, Search
from precision_bisect.runs.results.advised import Tried
from precision_bisect.search.case import Case
from precision_bisect.search.combinators import Batch, Outcomes
from precision_bisect.search.evaluation import Evaluator
from precision_bisect.search.other_cases import Cases
from precision_bisect.trial import Listed, Outcome, Phase, Proposal, SampleSet


class Editor:
    """Edits a copy of a model's main graph; `edited` gives it. The model itself stays as it is."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._proto = copied(proto)
        self._names = Names(self._proto.graph)
        self._nodes = list(self._proto.graph.node)
        self._number = 0

    def scale_reads(
        self, name: str, readers: Collection[str], factor: float | NDArray[Any]
    ) -> None:
        """Have the nodes of these names read the tensor times the factor, which broadcasts."""
        product = self._product(name, self._new("value"), factor)
        self._reroute(name, product.output[0], readers)
        self._nodes.insert(self._behind(name), product)

    def scale_made(self, name: str, factor: float) -> None:
        """Have the tensor be what is made under its name, times the factor."""
        place = self._behind(name)
        maker = self._nodes[place - 1]
        raw = self._new("value")
        for i, output in enumerate(maker.output):
            if output == name:
                maker.output[i] = raw
        self._nodes.insert(place, self._product(raw, name, factor))

    def replace(
        self, name: str, values: NDArray[Any], readers: Collection[str] | None = None
    ) -> None:
        """Have the nodes of these names, or all, read these values instead of a tensor."""
        self._reroute(name, self._constant(values), readers)

    def end_at(self, outputs: Sequence[str], fresh: Sequence[str]) -> None:
        """Have the model end with these of its outputs, and with `fresh` FP32 tensors."""
        ends = [value for value in self._proto.graph.output if value.name in outputs]
        floats = onnx.TensorProto.FLOAT
        ends += [onnx.helper.make_tensor_value_info(name, floats, None) for name in fresh]
        refill(self._proto.graph.output, ends)

    def without_quantization(self) -> None:
        """Have what is quantized and dequantized again pass as it is; weights stay quantized."""
        makers = {out: node for node in self._nodes for out in node.output}
        for place, node in enumerate(self._nodes):
            maker = makers.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
            if maker is not None and maker.op_type == "QuantizeLinear":
                self._nodes[place] = onnx.helper.make_node(
                    "Identity", maker.input[:1], node.output, name=node.name
                )

    def edited(self) -> onnx.ModelProto:
        """Return the model with every change."""
        refill(self._proto.graph.node, self._nodes)
        return self._proto

    def _reroute(self, name: str, other: str, readers: Collection[str] | None) -> None:
        for node in self._nodes:
            if readers is None or node.name in readers:
                for i, tensor in enumerate(node.input):
                    if tensor == name:
                        node.input[i] = other

    def _behind(self, name: str) -> int:
        places = [i for i, node in enumerate(self._nodes) if name in node.output]
        return places[0] + 1 if places else 0

    def _product(self, source: str, out: str, factor: float | NDArray[Any]) -> onnx.NodeProto:
        operands = [source, self._constant(np.array(factor, np.float32))]
        return onnx.helper.make_node("Mul", operands, [out], name=self._new("Mul"))

    def _constant(self, values: NDArray[Any]) -> str:
        name, array = self._new("constant"), np.asarray(values)
        self._proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        return name

    def _new(self, what: str) -> str:
        self._number += 1
        return self._names(f"precision_bisect/advised/{what}_{self._number}")


Advising: TypeAlias = Generator[Batch | Advice, Outcomes, None]
"""A search that also yields advice on its way."""
ADVICE_DRAW = 2 * 10**6
"""The draw of copies that advice is judged on; searches count theirs from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChange:
    """What is tried: another model, pair, scales or judge; None for the case's own.

    The FP32 outputs of the model judge it, if it is to have `own_reference`.
    """

    what: str
    model: Model | None = None
    pair: Pair | None = None
    scales: Scales | None = None
    comparator: Comparator | None = None
    own_reference: bool = False


UNCHANGED = ModelChange(what="control")


@dataclass(frozen=True, kw_only=True)
class DiagnosedModel:
    """The case of a run whose layers were diagnosed; `findings` are what that came to.

    `cases` evaluate trials; the run's `own` emulator serves those without a change, if there
    is one. `notes` are the builder's remarks, `listed` the names that came with them, `work` an
    empty folder for models that are tried out. A change has to pass on all targets of the case,
    and on the `variants`, too. Of the `fused` form the run has tried, these layers are kept, with
    this outcome. A search of a changed model may take as many trials as the run's `own_trials`.
    """

    case: Case
    findings: Findings
    watched: WatchedTensors
    work: Path
    cases: Cases
    own: Backend | None = None
    fused: tuple[frozenset[str], Outcome] | None = None
    own_trials: float = math.inf
    notes: Sequence[str] = ()
    listed: Sequence[Listed] = ()
    variants: Variants = field(default_factory=Variants)

    @property
    def low(self) -> LowType:
        return LOW_TYPES[self.case.pair.low]

    @cached_property
    def by_name(self) -> Mapping[str, Finding]:
        return {finding.layer: finding for finding in self.findings.layers}

    @cached_property
    def kept(self) -> frozenset[str]:
        """The kept layers; where nothing was searched, all that were explained."""
        layers = self.findings.layers
        return frozenset(one.layer for one in layers if one.kept) or frozenset(self.by_name)

    @cached_property
    def decomposed(self) -> Sequence[Decomposed]:
        """What the export took apart."""
        return find_decomposed(self.case.model)

    @cached_property
    def view(self) -> View:
        """The graph, for looking at operands and readers."""
        return View(self.case.model)

    def tried(
        self, kept: Collection[str], change: ModelChange, low: Collection[str] | None = None
    ) -> Search[Tried | None]:
        """Emulate a plan that keeps these layers, with and without a change.

        None where that cannot be, or is too large. Without the change the plan keeps these, too,
        unless the change gives another type to layers that are `low` then.
        """
        outcome = yield from self._emulated(kept, change)
        unchanged = frozenset(kept).difference(low or ())
        return None if outcome is None else (yield from self._beside_control(outcome, unchanged))

    def fused_by_run(self) -> Search[Tried | None]:
        """Return what the run's own plan of the fused form came to.

        None where none held, and where that keeps no fewer layers than the file's own plan.
        """
        kept, outcome = self.fused or (self.kept, None)
        if outcome is None or len(kept) >= len(self.kept):
            return None
        return (yield from self._beside_control(self._tried(outcome, len(kept)), kept))

    def _beside_control(self, outcome: Tried, unchanged: frozenset[str]) -> Search[Tried | None]:
        """Return an outcome with that of a plan without any change."""
        if unchanged not in self._controls:
            self._controls[unchanged] = yield from self._emulated(unchanged, UNCHANGED)
        control = self._controls[unchanged]
        return None if control is None else replace(outcome, control=control)

    @cached_property
    def _controls(self) -> dict[frozenset[str], Tried | None]:
        """What plans come to without any change, by the layers that they keep."""
        return {}

    def _emulated(self, kept: Collection[str], change: ModelChange) -> Search[Tried | None]:
        model = change.model or self.case.model
        if not emulates(model):
            return None
        # A changed file computes as this one if it has neither scales nor fixed layers.
        own_scales = self.case.pair.low in QUANTIZED and change.scales is None
        if change.model is not None and (self.on_ladder or own_scales):
            return None
        # A changed file knows nothing of what was asked for.
        model = replace(model, table=model.table.asking(self.case.model.table.asked))
        names = {str(name): i for i, name in enumerate(model.table.names)}
        plan = Plan.of(names[name] for name in kept if name in names)
        outcome = yield from self.judge(model, change, plan, draw=ADVICE_DRAW)
        return None if outcome.verdict is None else self._tried(outcome, len(plan))

    def _tried(self, outcome: Outcome, kept: int) -> Tried:
        stability = outcome.evidence.stability
        return Tried(
            error=outcome.error,
            on_samples=outcome.passed,
            kept=kept,
            before=len(self.kept),
            variants=0 if stability is None else stability.copies,
            failed=0 if stability is None else stability.failed,
        )

    def judge(
        self, model: Model, change: ModelChange, plan: Plan, draw: int = 0
    ) -> Search[Outcome]:
        """Judge a plan of a changed model, which takes of the allowance."""
        # The digest: answers may differ when a run is resumed, and the changes with them.
        settings = (change.comparator or self.case.comparator).settings()
        content = pickle.dumps((model.digest, change.pair, change.scales, settings))
        name = f"advice:{change.what}:{hashlib.sha256(content).hexdigest()[:12]}"
        self.cases.add(name, partial(self._evaluator, model, change))
        proposal = Proposal(
            plan=plan, phase=Phase.EXPLANATION, draw=draw, case=name, reason=change.what
        )
        (outcome,) = yield (proposal,)
        stability = outcome.evidence.stability
        variants = self.variants.of_model(len(self.case.samples), 0, None)
        variants.pay(0 if stability is None else stability.copies)
        return outcome

    def _evaluator(self, model: Model, change: ModelChange) -> Evaluator:
        backend: Backend
        # The run's own emulator has its sessions open.
        if change is UNCHANGED and self.own is not None:
            backend = self.own
        else:
            pair, scales = change.pair or self.case.pair, change.scales or self.case.scales
            backend = EmulatedBackend(
                model,
                pair.low,
                self.case.options.threads,
                pair.high,
                scales,
                targets=self.case.options.targets,
                factors=self.variants.factors,
                few=True,
            )
        # A change that is exact in FP32 is judged against the outputs that are known.
        refer = (
            ReferenceSession(model, self.case.options.threads, how=self.case.loop)
            if change.own_reference
            else None
        )
        reference = self.case.reference if refer is None else [*map(refer, self.case.samples)]
        layers = len(model.table.candidates)
        return Evaluator(
            backend=backend,
            emulator=backend,
            comparator=change.comparator or self.case.comparator,
            samples={SampleSet.JUDGED: (self.case.samples, reference)},
            keep=self.work,
            at_once=self.case.at_once,
            loop=self.case.loop,
            copies=self.variants.of_model(len(self.case.samples), layers, refer),
        )

    @property
    def on_ladder(self) -> bool:
        """Whether other rungs of a ladder have fixed layers of the model."""
        return any(layer.exclusion is Exclusion.RUNG for layer in self.case.model.table.layers)

    def applied(
        self, what: str, proto: onnx.ModelProto, freed: Collection[str]
    ) -> Search[Tried | None]:
        """Try a changed graph with these layers no longer kept; None where it cannot be tried."""
        if not emulates(self.case.model):
            return None
        try:
            model = self.loaded(proto, "applied")
        except PrecisionBisectError:
            return None
        change = ModelChange(what=what, model=model)
        # Where nothing was searched no layer is kept, and the change may do without any.
        if not any(one.kept for one in self.findings.layers):
            tried = yield from self.tried((), change)
            if tried is not None and tried.helps:
                return tried
        return (yield from self.tried(self.kept.difference(freed), change))

    def loaded(self, proto: onnx.ModelProto, name: str) -> Model:
        """Return a changed graph, with the model's weights, as if read from a file.

        Raises ModelError.
        """
        path = self.work / f"{name}.onnx"
        weights = self.case.model.weights
        return save_rewritten(proto, weights, path, "a changed model", like=self.case.model)
