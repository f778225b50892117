"""What an adviser looks at, how it changes a graph, and how it tries out what it would say.

Beside the samples, what took no part in the search judges: samples held out, and copies.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.errors import PrecisionBisectError
from precision_bisect.explaining.diagnosis.diagnose import emulates
from precision_bisect.explaining.diagnosis.findings import Finding, Findings
from precision_bisect.explaining.diagnosis.instrument import WatchedTensors
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.fusing.norms import Decomposed, find_decomposed
from precision_bisect.graphs.graph import Names, copied, refill
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES, QUANTIZED, LowType
from precision_bisect.graphs.node_views import View
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.typed.model_files import save_rewritten
from precision_bisect.judging.inputs.copies import FACTORS, Copies
from precision_bisect.layer_table import FIXED_BY_RUNG
from precision_bisect.options import DEFAULT_CALIBRATION, CalibrationName
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import BackendFailure, Comparator, Judgement, Sample
from precision_bisect.runs.results.advised import Tried
from precision_bisect.search.evaluation import judged_once
from precision_bisect.settings.targets import DEFAULT_TARGETS, TargetName
from precision_bisect.trial import Listed, SampleSet, Verdict


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


COPIES_PER_CHANGE = 8
"""Copies that judge one change, at most: half of an answer's. A bound on inferences."""
FEWEST_VARIANTS = 2
"""Variants that judge a change however late it is. Half and double change nothing in
benchmarks/constants.py."""
ADVICE_DRAW = 2 * 10**6
"""The draw of copies that advice is judged on; searches count theirs from 1."""


@dataclass(slots=True, kw_only=True)
class Allowance:
    """The inferences that are left for trying advice: counted, so that no machine's speed decides.

    Only where the user limits the time they end `until` then, by `time.monotonic`, too.
    """

    inferences: float = math.inf
    until: float = math.inf

    @property
    def spent(self) -> bool:
        """Whether nothing more may be tried."""
        return self.inferences <= 0 or time.monotonic() > self.until


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants:
    """Samples that took no part, with their reference outputs, and `copies`, None for none.

    No further ones are made once the `allowance` is spent.
    """

    unseen: tuple[Sequence[Sample], Sequence[Sample]] = ((), ())
    copies: Copies | None = None
    allowance: Allowance = field(default_factory=Allowance)

    @property
    def factors(self) -> bool:
        """Whether copies change what layers compute instead of the inputs."""
        return self.copies is not None and self.copies.layers > 0

    def pairs(
        self, layers: int, refer: Callable[[Sample], Sample] | None = None
    ) -> Iterator[tuple[Sequence[Sample], Sequence[Sample]]]:
        """Yield feeds and reference outputs of each variant for a model of so many layers.

        A changed model that has a reference of its own computes it by `refer`.
        """
        for number, (feed, outputs) in enumerate(zip(*self.unseen, strict=True)):
            if self._late(number):
                return
            yield [feed], [outputs if refer is None else refer(feed)]
        if self.copies is None:
            return
        before = len(self.unseen[0])
        copies = self.copies
        if copies.layers or refer:
            of_layers = layers if copies.layers else 0
            copies = replace(copies, layers=of_layers, refer=refer or copies.refer)
        for number in range(min(COPIES_PER_CHANGE, self.copies.count)):
            if self._late(before + number):
                return
            feeds, reference = copies.make(SampleSet.JUDGED, ADVICE_DRAW, number)
            yield (
                feeds,
                [refer(sample) for sample in feeds] if refer and copies.layers else reference,
            )

    def _late(self, number: int) -> bool:
        return number >= FEWEST_VARIANTS and self.allowance.spent


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChange:
    """What is tried: another model, pair, reference, scales or judge; None for the case's own."""

    model: Model | None = None
    pair: Pair | None = None
    scales: Scales | None = None
    reference: Sequence[Sample] | None = None
    comparator: Comparator | None = None


@dataclass(frozen=True, kw_only=True)
class DiagnosedModel:
    """A diagnosed model; `samples` and `reference` judge, `calibrating` set scales.

    `notes` are the builder's remarks, `listed` the names that came with them, `work` an empty
    folder for models that are tried out, `threads` ONNX Runtime's for one of the samples that are
    run `at_once`; `scales` those of everything
    that is quantized, found by `calibration`; a change has to pass on all `targets`, and on the
    `variants`, too.
    """

    model: Model
    pair: Pair
    findings: Findings
    watched: WatchedTensors
    samples: Sequence[Sample]
    calibrating: Sequence[Sample]
    reference: Sequence[Sample]
    comparator: Comparator
    work: Path
    notes: Sequence[str] = ()
    listed: Sequence[Listed] = ()
    threads: int = 0
    at_once: int = 1
    scales: Scales = field(default_factory=Scales)
    targets: Sequence[TargetName] = DEFAULT_TARGETS
    calibration: CalibrationName = DEFAULT_CALIBRATION
    variants: Variants = field(default_factory=Variants)

    @property
    def low(self) -> LowType:
        return LOW_TYPES[self.pair.low]

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
        return find_decomposed(self.model)

    @cached_property
    def view(self) -> View:
        """The graph, for looking at operands and readers."""
        return View(self.model)

    def tried(
        self, kept: Collection[str], change: ModelChange, low: Collection[str] | None = None
    ) -> Tried | None:
        """Emulate a plan that keeps these layers, with and without a change.

        None where that cannot be, or is too large. Without the change the plan keeps these, too,
        unless the change gives another type to layers that are `low` then.
        """
        outcome = self._emulated(kept, change)
        if outcome is None:
            return None
        unchanged = frozenset(kept).difference(low or ())
        if unchanged not in self._controls:
            self._controls[unchanged] = self._emulated(unchanged, ModelChange())
        control = self._controls[unchanged]
        return None if control is None else replace(outcome, control=control)

    @cached_property
    def _controls(self) -> dict[frozenset[str], Tried | None]:
        """What plans come to without any change, by the layers that they keep."""
        return {}

    def _emulated(self, kept: Collection[str], change: ModelChange) -> Tried | None:
        model, pair = change.model or self.model, change.pair or self.pair
        scales = change.scales or self.scales
        if not emulates(model):
            return None
        # A changed file computes as this one if it has neither scales nor fixed layers.
        own_scales = self.pair.low in QUANTIZED and change.scales is None
        if change.model is not None and (self.on_ladder or own_scales):
            return None
        # A changed file knows nothing of what was asked for.
        model = replace(model, table=model.table.asking(self.model.table.asked))
        names = {str(name): i for i, name in enumerate(model.table.names)}
        plan = Plan.of(names[name] for name in kept if name in names)
        try:
            backend = self.emulator(model, pair, scales, factors=self.variants.factors)
            reference = change.reference or self.reference
            judge = change.comparator or self.comparator
            judgement = self.judged(backend, plan, (self.samples, reference), judge)
            passed = judgement.verdict is Verdict.PASS
            failing = self._on_variants(backend, plan, model, change) if passed else []
        except (PrecisionBisectError, BackendFailure):
            return None
        return Tried(
            error=judgement.error,
            on_samples=passed,
            kept=len(plan),
            before=len(self.kept),
            variants=len(failing),
            failed=sum(failing),
        )

    def emulator(
        self, model: Model, pair: Pair, scales: Scales, *, factors: bool = False
    ) -> EmulatedBackend:
        """Return the emulator of a model, for some plans; raises as `EmulatedBackend` does."""
        return EmulatedBackend(
            model,
            pair.low,
            self.threads,
            pair.high,
            scales,
            targets=self.targets,
            factors=factors,
            whole=True,
        )

    def _on_variants(
        self, backend: EmulatedBackend, plan: Plan, model: Model, change: ModelChange
    ) -> list[bool]:
        """Return which variants a change fails on that has passed on the samples."""

        def refer(feed: Sample) -> Sample:
            inputs = {name: array for name, array in feed.items() if name != FACTORS}
            return reference_outputs(model, [inputs], self.threads)[0]

        judge = change.comparator or self.comparator
        pairs = self.variants.pairs(
            len(model.table.candidates), None if change.reference is None else refer
        )
        return [
            self.judged(backend, plan, variant, judge).verdict is not Verdict.PASS
            for variant in pairs
        ]

    def judged(
        self,
        backend: EmulatedBackend,
        plan: Plan,
        on: tuple[Sequence[Sample], Sequence[Sample]],
        judge: Comparator,
    ) -> Judgement:
        """Judge a plan on feeds and reference outputs, which takes of the allowance."""
        feeds, reference = on
        self.variants.allowance.inferences -= len(feeds)
        return judged_once(backend, plan, feeds, reference, judge, self.at_once)

    @property
    def on_ladder(self) -> bool:
        """Whether other rungs of a ladder have fixed layers of the model."""
        return any(layer.detail == FIXED_BY_RUNG for layer in self.model.table.layers)

    def applied(self, proto: onnx.ModelProto, freed: Collection[str]) -> Tried | None:
        """Try a changed graph with these layers no longer kept; None where it cannot be tried."""
        if not emulates(self.model):
            return None
        try:
            model = self.loaded(proto, "applied")
        except PrecisionBisectError:
            return None
        change = ModelChange(model=model)
        # Where nothing was searched no layer is kept, and the change may do without any.
        if not any(one.kept for one in self.findings.layers):
            tried = self.tried((), change)
            if tried is not None and tried.helps:
                return tried
        return self.tried(self.kept.difference(freed), change)

    def loaded(self, proto: onnx.ModelProto, name: str) -> Model:
        """Return a changed graph, with the model's weights, as if read from a file.

        Raises ModelError.
        """
        path = self.work / f"{name}.onnx"
        weights = self.model.weights
        return save_rewritten(proto, weights, path, "a changed model", like=self.model)
