"""The emulated backend: predicts any plan on any machine, one inference a trial.

It computes in FP32, and rounds each layer's outputs to the type that the layer stores them in.
Inside an operator sums stay in FP32, as in tensor cores. One session serves every plan (see
`switched`), or one for each segment (see `segments`). Its result is a prediction; the target has
the last word.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from precision_bisect.backends.emulation.fixed_edges import is_bare
from precision_bisect.backends.emulation.plan_sessions import Graphs, Opened, open_session
from precision_bisect.backends.emulation.segments import SHORT_RUNS, Segmented
from precision_bisect.backends.emulation.semantics import distinct
from precision_bisect.backends.emulation.switched import (
    FLAGS_INPUT,
    SwitchedGraph,
    switch,
)
from precision_bisect.backends.tensorrt.flavour import refused_by_every_parser, without_kernel
from precision_bisect.errors import ModelError
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.ort import Providers, on_cpu, runtime
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.typed.pinning import without_cuda_kernel
from precision_bisect.judging.inputs.copies import FACTORS
from precision_bisect.layer_table import LayerName
from precision_bisect.machine.free_space import trim
from precision_bisect.machine.gpu import full
from precision_bisect.plan import Plan
from precision_bisect.precisions import HighName, LowName, Pair
from precision_bisect.protocols import BackendFailure, DroppedNan, Sample
from precision_bisect.settings.targets import DEFAULT_TARGETS, TargetName
from precision_bisect.trial import Evidence, Latency, Outcome, TrialStatus, Verdict

# How C++ and NumPy say that main memory is full.
_NO_MEMORY = re.compile(r"bad.alloc|unable to allocate", re.I)


class EmulatedBackend:
    """Evaluates plans of one model by switched round trips to the low type.

    `scales` has the scale of everything that some plan quantizes. `providers` is called for the
    providers whenever a session is opened. An engine has a way for each of the `targets` that
    compute the model otherwise. With `factors` feeds may hold FACTORS. The graph runs in segments
    if that pays, unless it is to run `whole`. Where `few` plans are expected the first has a whole
    graph of its own (see `fixed_edges`), opened with its first feed; the second opens that of all.
    Where such a graph `is_bare`, every plan has one, after the other; `alone` asks for that there
    without `few`. With `tf32` FP32 layers round as TF32 does.

    Raises what `providers` does, RefusedError if this ONNX Runtime does not keep explicit round
    trips (the self-test at start), and ModelError if it cannot load the model. `late` leaves all
    of that, and the memory that it takes, to the first plan that is evaluated.
    """

    name: ClassVar[str] = "emulated"
    emulated: ClassVar[bool] = True

    def __init__(
        self,
        model: Model,
        low: LowName = "fp16",
        threads: int = 0,
        high: HighName = "fp32",
        scales: Scales | None = None,
        *,
        providers: Callable[[], Providers] = on_cpu,
        targets: Sequence[TargetName] = DEFAULT_TARGETS,
        factors: bool = False,
        whole: bool = False,
        few: bool = False,
        alone: bool = False,
        late: bool = False,
        tf32: bool = False,
    ) -> None:
        pair = Pair(low=low, high=high)
        self._refused = refused_by_every_parser(model, low)
        if "tensorrt-rtx" in targets:
            self._refused |= without_kernel("tensorrt-rtx", model, low)
        if "onnxruntime" in targets:
            lacking = without_cuda_kernel(model, pair, Plan.of(()))
            self._refused |= {name: lacking[name] for name in model.table.names if name in lacking}
        made = partial(switch, pair=pair, scales=scales or Scales(), factors=factors, tf32=tf32)
        self._distinct = distinct(model, pair, targets)
        bare = providers is on_cpu and is_bare(model)
        alone = bare and (few or alone)
        self._graphs = [
            Graphs(partial(made, target=target), as_text=alone) for target in self._distinct
        ]
        self._model, self._plain = model, not (factors or tf32)
        count = len(model.table.candidates)
        # Factors of one change nothing; the graph has the input all the same.
        ones: Sample = {FACTORS: np.ones(count, np.float32)} if factors else {}
        self._ways = [
            _Way(
                partial(open_session, model, pair, graphs, threads, providers, bare=bare),
                count,
                ones,
                in_segments=not whole,
                few=few,
                alone=alone,
            )
            for graphs in self._graphs
        ]
        if not (late or few or alone):
            for way in self._ways:
                way.open()

    def versions(self) -> Mapping[str, str]:
        """Return the version of ONNX Runtime and its provider."""
        return {"onnxruntime": runtime().__version__, "provider": "CPU"}

    def unbuildable(self) -> Mapping[LayerName, str]:
        """Return the layers that a target would refuse: any operator could be rounded here."""
        return self._refused

    def held_graph(self, model: Model, target: TargetName) -> SwitchedGraph | None:
        """Return the graph of all plans of a model as a target computes it; None for others.

        It has no factors and no TF32.
        """
        own = model.proto is self._model.proto and model.table.names == self._model.table.names
        if not (own and self._plain) or target not in self._distinct:
            return None
        held = self._graphs[self._distinct.index(target)].held
        return held and held[0]

    def build(self, plan: Plan, *, afresh: bool = False) -> "EmulatedEngine":
        """Return the plan as an engine; nothing is built."""
        del afresh
        return EmulatedEngine(self._ways, plan)

    def rest(self) -> None:
        """Give the sessions' memory back; the next plan opens them again."""
        for way in self._ways:
            way.rest()
        trim()

    def evaluate(self, plan: Plan, feed: Sample) -> Sample:
        """Return the outputs, by name, of `plan` for one feed. Raises BackendFailure."""
        return self.build(plan).run(feed)


class _Way:
    """The session of all plans, as one target computes them; `ones` are fed unless others are.

    Each plan has its own session if they are `alone`.
    """

    def __init__(
        self,
        opened: Callable[..., Opened],
        candidates: int,
        ones: Sample,
        *,
        in_segments: bool,
        few: bool,
        alone: bool,
    ) -> None:
        self._make = opened
        self._in_segments = in_segments
        self._few = few
        self._alone = alone
        self._first: NDArray[np.bool_] | None = None
        self._candidates = candidates
        self._ones = ones
        self._opening = Lock()
        self._opened: Opened | None = None

    def rest(self) -> None:
        """Close the session; the next plan opens it again."""
        with self._opening:
            self._opened = None

    def evaluate(self, plan: Plan, feed: Sample) -> Sample:
        """Return the outputs, by name, of `plan` for one feed. Raises BackendFailure."""
        low = np.ones(self._candidates, np.bool_)
        low[list(plan.kept)] = False
        opened = self.open(low)
        # Short inferences lose more by several sessions than they save.
        if isinstance(opened.session, Segmented) and opened.session.short_runs >= SHORT_RUNS:
            self._leave_for_whole(opened)
            opened = self.open()
        try:
            return self._run(opened, feed, low)
        except (RuntimeError, ModelError) as error:
            # It may be of the segments' or one plan's making: the whole graph has the last word.
            fixed = opened.fixed is not None and not _starved(str(error))
            if isinstance(opened.session, Segmented) or fixed:
                self._leave_for_whole(opened)
                return self.evaluate(plan, feed)
            raise BackendFailure(self._stopped(feed, low, str(error))) from error

    def _stopped(self, feed: Sample, low: NDArray[np.bool_], message: str) -> Outcome:
        """Return what a plan comes to that does not run on a feed.

        It fails where every layer high runs: a low value has led astray, as an index that leaves
        its table does.
        """
        if low.any() and not _starved(message):
            with suppress(RuntimeError, ModelError):
                self._run(self.open(), feed, np.zeros_like(low))
                return Outcome(
                    status=TrialStatus.FINISHED,
                    verdict=Verdict.FAIL,
                    error=math.inf,
                    message=message,
                )
        return Outcome(status=TrialStatus.RUN_FAILED, message=message)

    def _run(self, opened: Opened, feed: Sample, low: NDArray[np.bool_]) -> Sample:
        """Return the outputs; those that no NaN reached because one was dropped say so."""

        def run(low: NDArray[np.bool_]) -> tuple[Sample, Mapping[str, int]]:
            arrays = opened.session.run(
                {**self._ones, **feed, FLAGS_INPUT: opened.switches.flags(low)}
            )
            outputs = {name: arrays[name] for name in arrays if name not in opened.watched}
            return outputs, {name: int(arrays[name]) for name in opened.watched}

        outputs, counts = run(low)
        if any(counts.values()):
            # NaN that FP32 has as well is what the model means.
            if opened.fixed is not None:
                # What comes of every layer high is another plan: one graph for all serves both.
                self._few = self._alone = False
                return self._run(self.open(), feed, low)
            _, exact = run(np.zeros_like(low))
            layers = [
                opened.watched[name] for name, count in counts.items() if count > exact[name]
            ]
            if layers:
                return DroppedNan(outputs, tuple(dict.fromkeys(layers)))
        return outputs

    def open(self, low: NDArray[np.bool_] | None = None) -> "Opened":
        """Return the open session, or open it; of `few` plans for that with these layers low."""
        with self._opening:
            if self._few and low is not None:
                self._few = self._first is None or bool((self._first == low).all())
                self._first = low
            fixed = low if self._few or self._alone else None
            if self._opened is None or not self._opened.serves(fixed):
                self._opened = None
                in_segments = self._in_segments and fixed is None
                self._opened = self._make(in_segments=in_segments, fixed=fixed)
            return self._opened

    def _leave_for_whole(self, opened: Opened) -> None:
        """Make the next plan open the whole graph in place of what is `opened`."""
        with self._opening:
            self._in_segments = self._few = self._alone = False
            if self._opened is opened:
                self._opened = None


def _starved(message: str) -> bool:
    """Tell whether an error is for want of memory, which no plan is to blame for."""
    return full(message) or _NO_MEMORY.search(message) is not None


class EmulatedEngine:
    """One plan on the sessions that serve all of them."""

    def __init__(self, ways: Sequence[_Way], plan: Plan) -> None:
        self._ways = ways
        self.plan = plan

    @property
    def ways(self) -> Sequence["EmulatedEngine"]:
        """The plan as each of the targets computes it; see `Several`."""
        return [EmulatedEngine([way], self.plan) for way in self._ways]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Free nothing: the sessions belong to the backend."""

    def run(self, feed: Sample) -> Sample:
        """Return the outputs by name, as the first target computes them. Raises BackendFailure."""
        return self._ways[0].evaluate(self.plan, feed)

    def time(self, feed: Sample) -> Latency | None:
        """Return None: how long a prediction takes says nothing of an engine."""
        del feed
        return None

    def evidence(self) -> Evidence:
        """Return no evidence: nothing was built."""
        return Evidence()

    def save(self, folder: Path) -> None:
        """Save nothing: there is no engine."""
