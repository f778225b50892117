"""The unit of work: one proposal is built, run and judged.

An `Evaluator` uses neither ledger nor observer. So any executor can call it, several calls at a
time, in the process that it was made in.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from precision_bisect.errors import RunFolderError
from precision_bisect.judging.comparators.output_errors import output_errors, together
from precision_bisect.judging.comparators.script import judge_outputs
from precision_bisect.judging.inputs.copies import Draws, Samples, fewer
from precision_bisect.judging.inputs.loops import PLAIN, Loop
from precision_bisect.machine.stopping import TimedOut
from precision_bisect.machine.threads import side_by_side
from precision_bisect.plan import Plan
from precision_bisect.protocols import (
    Backend,
    BackendFailure,
    Comparator,
    Engine,
    Judgement,
    Sample,
    T,
)
from precision_bisect.search.engine_runs import (
    Outputs,
    errors_by_step,
    outputs_of,
    tells_steps,
    ways_of,
)
from precision_bisect.search.engine_store import engine_folder
from precision_bisect.search.limits_and_noise import deciding
from precision_bisect.search.precision_curve import FEW_COPIES
from precision_bisect.search.sample_sets import SampleSets, judges_each, summed_up
from precision_bisect.search.stopwatch import Stopwatch
from precision_bisect.trial import (
    JUDGED_KINDS,
    Evidence,
    Kind,
    OneByOne,
    Outcome,
    OutputError,
    Phase,
    Proposal,
    SampleSet,
    Stability,
    TrialStatus,
    Verdict,
)

CURVE_COPIES = 4
"""Copies for a point of the curve, or in a search, at most. The curve reads their median, to see a
factor of 2. Half and double change no more than chance does in benchmarks/constants.py."""

EACH_COPIES = 2
"""Copies of one sample that tell how far luck moves its error."""
EACH = (Phase.PREFLIGHT, Phase.CURVE, Phase.RECHECK, Phase.SPEED, Phase.EXPLANATION)
"""Phases whose trials tell the error of each sample, too: those of the curve's points, and of what
may be deployed."""

# A plan, what it ran on, and its outputs.
_Run: TypeAlias = tuple[Plan, SampleSet, Outputs]


def with_engine(backend: Backend, plan: Plan, use: Callable[[Engine], T]) -> T | Outcome:
    """Build a plan; return what the engine is used for, or how that, or the build, has failed."""
    try:
        with backend.build(plan) as engine:
            return use(engine)
    except BackendFailure as failure:
        return failure.outcome


@dataclass(slots=True, kw_only=True)
class Evaluator:
    """Evaluates the trials of a run. Where several threads call it, every part must allow that.

    `emulator` answers `Kind.PREDICT` and may be the backend itself. `keep` is the folder for the
    engine that passes the re-check. `engines` is the folder for those of all other trials, None to
    keep none. `stopwatch` times the trials that ask for it. `at_once` is the number of samples
    that are emulated at the same time. `copies` judge trials with a draw, in addition to the
    samples. A `loop` runs each sample.
    """

    backend: Backend
    emulator: Backend
    comparator: Comparator
    samples: Samples
    keep: Path
    engines: Path | None = None
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    at_once: int = 1
    copies: Draws | None = None
    loop: Loop = PLAIN
    _last: _Run | None = field(init=False, default=None)

    def __call__(self, proposal: Proposal) -> Outcome:
        """Evaluate a proposal; a failure of the backend is an outcome, not an exception.

        A repeat is compared with the outputs of the trial before it, if that was the same plan;
        otherwise the plan is built twice. Raises RunFolderError where an engine cannot be saved,
        and Stopped where the run is to end.
        """
        try:
            return self._build_and_judge(proposal)
        except BackendFailure as failure:
            return failure.outcome
        except TimedOut as error:
            return Outcome(status=TrialStatus.TIMED_OUT, message=error.message)

    def _build_and_judge(self, proposal: Proposal) -> Outcome:
        samples = self.samples
        if proposal.samples.singly and isinstance(samples, SampleSets) and samples.each:
            return self._one_by_one(proposal, samples)
        backend = self.emulator if proposal.kind is Kind.PREDICT else self.backend
        feeds, expected = self.samples[proposal.samples]
        repeated = proposal.kind is Kind.REPEAT
        reference = self._first_outputs(proposal, feeds) if repeated else [expected]
        with ExitStack() as stack:
            # These kinds ask whether two builds agree: an engine from a cache would always agree
            # with itself.
            afresh = proposal.kind in (Kind.REPEAT, Kind.AGAIN, Kind.REBUILD)
            engine = stack.enter_context(backend.build(proposal.plan, afresh=afresh))
            # An engine serves one run at a time; only the emulator's sessions are safe to share.
            outputs = self._outputs(engine, feeds, self.at_once if backend.emulated else 1)
            judgement = _judge(self.comparator, outputs, reference)
            # The evidence is about the build alone: the timed runs below only add a latency to it.
            evidence = engine.evidence()
            if proposal.phase in EACH and isinstance(samples, SampleSets) and samples.each:
                numbers = samples.numbers(proposal.samples)
                evidence = replace(evidence, one_by_one=self._each(numbers, outputs, expected))
            # It may be the answer, whatever it was tried for.
            if judgement.verdict is Verdict.PASS and proposal.kind in JUDGED_KINDS:
                worst = _hardest(self.comparator, outputs, expected)
                errors = output_errors(worst, expected)
                if isinstance(samples, SampleSets):
                    numbers = samples.numbers(proposal.samples)
                    errors = [replace(one, sample=numbers[one.sample]) for one in errors]
                evidence = replace(evidence, output_errors=errors)
            if not self.loop.plain and tells_steps(proposal) and isinstance(samples, SampleSets):
                refer = samples.refer if samples.given is None else None
                ways = ways_of(engine)
                by_step = errors_by_step(self.loop, self.comparator, ways, refer, feeds)
                evidence = replace(evidence, by_step=by_step)
            if proposal.draw and self.copies is not None and _tells(self.copies, judgement):
                ran = outputs, expected
                judgement, stability = self._on_copies(
                    engine, proposal, self.copies, judgement, ran
                )
                evidence = replace(evidence, stability=stability)
            if self.copies is not None and (proposal.timed or proposal.phase is Phase.RANKING):
                # A session that only waits slows down what is timed on its device, and takes
                # memory beside a ranking.
                self.copies.rest()
            if proposal.timed:
                evidence = _timed(self.stopwatch, proposal.plan, engine, feeds, evidence)
            if proposal.phase is Phase.RECHECK and judgement.verdict is Verdict.PASS:
                _keep(engine, self.keep)
            elif self.engines is not None and proposal.kind is Kind.JUDGE and not proposal.draw:
                evidence = _stored(engine, engine_folder(self.engines, proposal.plan), evidence)
            # The engine passes to the stopwatch, which closes it; `stack` is emptied by that. One
            # without a figure is of no use to it.
            if proposal.timed and evidence.latency is not None:
                self.stopwatch.adopt(proposal.plan, engine, stack)
        if proposal.kind is Kind.JUDGE and not proposal.draw:
            self._last = proposal.plan, proposal.samples, outputs
        return _outcome(judgement, evidence)

    def _each(
        self, numbers: Sequence[int], outputs: Outputs, expected: Sequence[Sample]
    ) -> OneByOne | None:
        """Return what was judged together, by sample; None after an output that is not finite."""
        if any(len(way) < len(expected) for way in outputs):
            return None
        judgements = [
            _judge(self.comparator, [[way[i]] for way in outputs], [[expected[i]]])
            for i in range(len(expected))
        ]
        return summed_up(numbers, judgements)[1]

    def _one_by_one(self, proposal: Proposal, samples: SampleSets) -> Outcome:
        """Judge each sample by itself; feeds and references are held no longer than that takes."""
        backend = self.emulator if proposal.kind is Kind.PREDICT else self.backend

        # Figures of elements take a pass over all outputs, so only trials that the screen shows
        # have them.
        tells = proposal.phase is Phase.RECHECK and proposal.samples.numbers is not None
        errors: dict[int, Sequence[OutputError]] = {}

        def judge(number: int) -> Judgement | None:
            feed, expected = samples.single(number)
            if expected is None:
                return None
            outputs = self._outputs(engine, [feed])
            judgement = _judge(self.comparator, outputs, [[expected]])
            if tells and judgement.verdict is Verdict.PASS:
                hardest = _hardest(self.comparator, outputs, [expected])
                errors[number] = output_errors(hardest, [expected], number)
            return judgement

        numbers = samples.numbers(proposal.samples)
        with backend.build(proposal.plan, afresh=proposal.kind is Kind.REBUILD) as engine:
            judgements = [*side_by_side(judge, numbers, self.at_once if backend.emulated else 1)]
            judgement, one_by_one = summed_up(numbers, judgements)
            if proposal.draw and self.copies is not None:
                copied = [self._copied(engine, proposal.draw, n, self.copies) for n in numbers]
                one_by_one = replace(one_by_one, copies=copied)
            if proposal.phase is Phase.RECHECK and judgement.verdict is Verdict.PASS:
                _keep(engine, self.keep)
            passed = judgement.verdict is Verdict.PASS
            worst = together(e for _, e in sorted(errors.items())) if passed else ()
            evidence = replace(engine.evidence(), one_by_one=one_by_one, output_errors=worst)
            return _outcome(judgement, evidence)

    def _copied(
        self, engine: Engine, draw: int, number: int, copies: Draws
    ) -> Sequence[float | None]:
        """Return the errors on copies of one sample."""
        draws = (copies.make(SampleSet.chosen([number]), draw, i) for i in range(EACH_COPIES))
        return [
            _judge(self.comparator, self._outputs(engine, feeds), [expected]).error
            for feeds, expected in draws
        ]

    def _on_copies(
        self,
        engine: Engine,
        proposal: Proposal,
        copies: Draws,
        on_samples: Judgement,
        ran: tuple[Outputs, Sequence[Sample]],
    ) -> tuple[Judgement, Stability]:
        """Judge a plan on its draw of copies, too; a pass needs both.

        It ends early once too many copies have failed: at once in a certificate, elsewhere after
        half of them, since their errors also tell the spread. Some phases have few copies. From
        the second one on only samples that may decide have copies (see `deciding`). What the
        samples `ran` to, and their reference, tells which.
        """
        parallel = self.at_once if self.backend.emulated else 1
        count, allowed = copies.count, copies.allowed
        if proposal.phase in FEW_COPIES:
            count, allowed = fewer(copies, CURVE_COPIES)
        least = 0 if proposal.phase is Phase.CERTIFICATE else count // 2
        judgements: list[Judgement] = []
        failed, places = 0, None
        # The draw's number seeds the copies, so a resumed run judges on exactly the same ones.
        for number in range(count):
            feeds, reference = copies.make(proposal.samples, proposal.draw, number, places)
            outputs = self._outputs(engine, feeds, parallel)
            judgements.append(_judge(self.comparator, outputs, [reference]))
            failed += judgements[-1].verdict is not Verdict.PASS
            if failed > allowed and len(judgements) >= least:
                break
            if places is None and 1 < len(feeds) == len(ran[1]) and number + 1 < count:
                places = self._deciding(ran, (outputs, reference))
        stability = Stability.of(
            failed, [judgement.error for judgement in judgements], on_samples.verdict
        )
        return _worst(on_samples, judgements, stability, allowed), stability

    def _deciding(self, *runs: tuple[Outputs, Sequence[Sample]]) -> Sequence[int] | None:
        """Return the places of samples that may decide a copy, by their errors in two runs.

        None where that is not known. An output of classes may change as a whole.
        """
        floats = all(array.dtype.kind == "f" for array in runs[0][1][0].values())
        if not (floats and judges_each(self.comparator)):
            return None
        each = [self._each(range(len(run[1])), *run) for run in runs]
        return deciding(*(() if one is None else one.errors for one in each))

    def _first_outputs(self, repeat: Proposal, feeds: Sequence[Sample]) -> Outputs:
        last = self._last
        # The driver may have judged another plan in between when several workers share this
        # object.
        if last is not None and last[:2] == (repeat.plan, repeat.samples):
            return last[2]
        with self.backend.build(repeat.plan) as engine:
            return self._outputs(engine, feeds)

    def _outputs(self, engine: Engine, feeds: Sequence[Sample], count: int = 1) -> Outputs:
        return outputs_of(engine, self.loop, feeds, count)


def _outcome(judgement: Judgement, evidence: Evidence) -> Outcome:
    # Before the verdict: what an engine computes that ignores the plan says nothing about the
    # plan.
    if evidence.demoted:
        return Outcome(
            status=TrialStatus.NOT_HONOURED,
            error=judgement.error,
            message=_disobeyed(evidence),
            evidence=evidence,
        )
    return Outcome(
        status=TrialStatus.FINISHED,
        verdict=judgement.verdict,
        error=judgement.error,
        message=judgement.message,
        evidence=replace(
            evidence, by_classes=judgement.by_classes, dropped_nan=judgement.dropped_nan
        ),
    )


def _tells(copies: Draws, on_samples: Judgement) -> bool:
    """Tell whether copies are worth a run: where all may fail they decide nothing of a failure."""
    return on_samples.verdict is Verdict.PASS or copies.allowed < copies.count


def _judge(comparator: Comparator, outputs: Outputs, reference: Outputs) -> Judgement:
    """Return the worst verdict over all ways; one `reference` serves each of them."""
    references = [*reference] * len(outputs) if len(reference) == 1 else reference
    return max(
        (judge_outputs(comparator, *pair) for pair in zip(outputs, references, strict=True)),
        key=lambda judgement: (judgement.verdict is Verdict.FAIL, judgement.error or 0.0),
    )


def _hardest(
    comparator: Comparator, outputs: Outputs, reference: Sequence[Sample]
) -> Sequence[Sample]:
    """Return the outputs of the way with the largest error."""
    if len(outputs) == 1:
        return outputs[0]
    return max(outputs, key=lambda way: judge_outputs(comparator, way, reference).error or 0.0)


def _worst(
    on_samples: Judgement, judgements: Sequence[Judgement], stability: Stability, allowed: int
) -> Judgement:
    """Return the verdict over samples and copies, with the largest error that must be within."""
    errors = sorted(
        (judgement.error for judgement in judgements if judgement.error is not None), reverse=True
    )
    # `allowed` copies may fail, so the largest error that counts is the one after them.
    figures = [*errors[allowed : allowed + 1]]
    figures += [on_samples.error] if on_samples.error is not None else []
    error = max(figures, default=None)
    if on_samples.verdict is not Verdict.PASS:
        return replace(on_samples, error=error)
    if stability.failed <= allowed:
        return replace(on_samples, error=error)
    return Judgement(
        verdict=Verdict.FAIL,
        error=error,
        message=f"{stability.failed} of {stability.copies} copies of the samples fail",
    )


def _keep(engine: Engine, folder: Path) -> None:
    try:
        engine.save(folder)
    except OSError as error:
        raise RunFolderError(
            f"cannot write the engine into {folder}: {error.strerror}",
            "free some space, then go on with --resume",
        ) from error


def _stored(engine: Engine, folder: Path, evidence: Evidence) -> Evidence:
    """Save an engine that nothing depends on; a failure becomes a note of the evidence."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        engine.save(folder)
    except OSError as error:
        note = f"its engine could not be kept: {error.strerror}"
        return replace(evidence, notes=(*evidence.notes, note))
    return evidence


def _timed(
    stopwatch: Stopwatch, plan: Plan, engine: Engine, feeds: Sequence[Sample], evidence: Evidence
) -> Evidence:
    """Return the evidence with the latency; a measurement that fails costs only its figure."""
    try:
        return replace(evidence, latency=stopwatch.time(plan, engine, feeds))
    except BackendFailure as failure:
        note = f"the latency could not be measured: {failure.outcome.message}"
        return replace(evidence, notes=(*evidence.notes, note))


def _disobeyed(evidence: Evidence) -> str:
    first, *others = evidence.demoted
    more = f" (and {len(others)} more)" if others else ""
    return f"the engine does not keep {first.layer!r}: {first.evidence}{more}"
