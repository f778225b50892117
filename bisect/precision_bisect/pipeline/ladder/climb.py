"""A run over a ladder of types: one search per rung, then the whole is judged.

The rungs are searched from the top. The first search finds the layers that cannot have the second
highest type. With those fixed, the next finds which of the others cannot have the next lower one,
and so on. The error is that of everything decided so far, so each rung but the last must leave a
part of the tolerance to those below (`RUNG_SHARE`).

The result is then judged as a whole, within the full tolerance: for each rung its upper layers
are the candidates, and everything else is fixed. A layer that can go one type down after all goes,
until a pass over all rungs changes nothing. Dropping any kept layer by one type has then failed in
the final composition.

Every search is an ordinary run of one pair with its own ledger, in a folder inside the run folder,
so a ladder is resumed like any run.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from precision_bisect.execution.executor import Executor
from precision_bisect.graphs.layers_file import write_layers
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.quantization.calibration import scales_for
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.typed.pinning import NothingLow, pin_formless, pinned_layers
from precision_bisect.judging.comparators.steadiness import shared
from precision_bisect.layer_table import LayerName
from precision_bisect.machine.stopping import STOPS, Stopped, running_s, until
from precision_bisect.options import Options
from precision_bisect.pipeline.asked_too_much import AskedLow
from precision_bisect.pipeline.early_end import end_early
from precision_bisect.pipeline.ladder.composition import Composition, Floor
from precision_bisect.pipeline.ladder.ladder_answer import Climbed, RungSearch, conclude_ladder
from precision_bisect.pipeline.loading import Loaded, load_run
from precision_bisect.pipeline.made_files import keep_made
from precision_bisect.pipeline.prepare import Prepared, assemble
from precision_bisect.pipeline.run import run_prepared
from precision_bisect.precisions import Pair, pairs_of
from precision_bisect.runs.locking import RunLock
from precision_bisect.runs.monitoring.events import (
    Event,
    Observer,
    RunStarted,
    TrialsEnded,
    Warned,
)
from precision_bisect.runs.results.endings import WITHOUT_ANSWER, Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.runfolder import RunFolder
from precision_bisect.search.budget import Budget

RUNG_SHARE = 0.5
"""Share of what is left of the tolerance that each rung but the last may use up. Half and double
change nothing in benchmarks/constants.py."""


def climb(
    options: Options, observer: Observer, work: Path, lock: RunLock, executor: Executor
) -> Result:
    """Search all rungs of the options' ladder, write the run folder, and return the result.

    `work` is an empty folder; `lock` is for the run folder; the `executor` evaluates
    trials. Raises as a run of one pair does.
    """
    budget = Budget(
        max_trials=options.max_trials, max_time_s=options.max_time_s, spent_s=running_s()
    )
    request = options
    try:
        with until(budget.overdue):
            loaded = load_run(options, observer, work)
            options = loaded.case.options
            lowest = pairs_of(options.ladder)[0]
            model = pin_formless(loaded.case.model, lowest)
            scales = scales_for(model, lowest, loaded.case.sets.judging, options)
    except Stopped as stopped:
        return end_early(stopped, request, budget, lock)
    folder = lock.open(overwrite=options.overwrite, rungs=True)
    loaded = keep_made(loaded, work, folder)
    climbed = _Climb(
        comparator=loaded.case.comparator,
        composition=Composition.at_top(options.ladder, loaded.case.model.table.names),
        loaded=loaded,
        scales=scales,
        observer=_once(observer),
        work=work,
        executor=executor,
    )
    climbed.take_floors(model, level=1)
    try:
        climbed.run(folder, budget)
    except Stopped as stopped:
        return end_early(stopped, request, budget, lock)
    write_layers(loaded.case.model, folder)
    observer(TrialsEnded())
    try:
        return conclude_ladder(climbed, budget, folder, observer)
    except KeyboardInterrupt:
        climbed.cut_short = True
    # It came where nothing answers it: the answer is written without what explains it.
    return conclude_ladder(climbed, budget, folder, observer)


@dataclass(slots=True, kw_only=True)
class _Climb(Climbed):
    """The searches of a ladder, in order: each takes the composition a step further."""

    loaded: Loaded
    scales: Scales
    observer: Observer
    work: Path
    executor: Executor
    decided: dict[int, Composition] = field(default_factory=dict)

    def run(self, top: RunFolder, budget: Budget) -> None:
        try:
            self._all_rungs(top, budget)
        except STOPS:
            # As without a first search below; a later one leaves the composition as it is.
            if not self.steps:
                raise
            self.broken_off = Status.BUDGET_EXHAUSTED
        except KeyboardInterrupt:
            # Without a first search there is no result to write: let the interrupt through.
            if not self.steps:
                raise
            self.broken_off = Status.INTERRUPTED

    def _all_rungs(self, top: RunFolder, budget: Budget) -> None:
        """Search all rungs from the top, then again until nothing changes."""
        rungs = range(len(self.composition.ladder) - 1)
        share = 0.0
        for rung in reversed(rungs):
            # What is left halves with each rung, and the last one may use all of it.
            share = 1.0 if rung == 0 else share + RUNG_SHARE * (1.0 - share)
            if not self._search(rung, share, top, budget):
                return
        while True:
            # A rung is decided if its search saw this very composition; a change elsewhere makes
            # it stale.
            stale = [r for r in reversed(rungs) if self.decided.get(r) != self.composition]
            if not stale or not self._search(stale[0], 1.0, top, budget):
                return

    def _search(self, rung: int, share: float, top: RunFolder, budget: Budget) -> bool:
        """Search one rung within a share of the tolerance; False where that ends the run."""
        pair = self.composition.pair(rung)
        model = self.composition.on_rung(self.loaded.case.model, rung)
        number = len(self.steps) + 1
        try:
            if not model.table.candidates:
                raise NothingLow(
                    "no layer is left for this rung", "leave its type out of the ladder"
                )
            with until(budget.overdue):
                prepared = self._prepared(model, pair, share, number)
        # No layer of this rung has a form in its lower type: nothing to search, and no step.
        except NothingLow:
            self.take_floors(pin_formless(model, pair), rung + 1)
            if share == 1.0:
                self.decided[rung] = self.composition
            return True
        self.take_floors(prepared.case.model, rung + 1)
        folder = RunFolder(top.rung(number, pair.low))
        observer = _in_rung(self.observer, f"{pair.low} against {pair.high}")
        asked_low = AskedLow(
            loaded=self.loaded, executor=self.executor, work=self.work / f"asked-{number}"
        )
        result = run_prepared(prepared, observer, budget, folder, part=True, asked_low=asked_low)
        self._take(rung, prepared, result, folder.ledger)
        if share == 1.0:
            self.decided[rung] = self.composition
        return result.status.answers

    def _prepared(self, model: Model, pair: Pair, share: float, number: int) -> Prepared:
        work = self.work / f"rung-{number}"
        # A rung on which no layer has a form is no step, and leaves its number to the next one.
        work.mkdir(exist_ok=True)
        case = self.loaded.case
        options = replace(case.options, low=pair.low, high=pair.high, ladder=())
        comparator = shared(case.comparator, share, case.reference)
        case = replace(case, options=options, model=model, comparator=comparator)
        loaded = replace(self.loaded, case=case)
        return assemble(loaded, self.observer, work, self.scales, self.executor)

    def take_floors(self, model: Model, level: int) -> None:
        """Note the layers that have no form below a level: those that the model's table pins."""
        for name, reason in pinned_layers(model).items():
            floor = self.floors.get(LayerName(name))
            if floor is None or floor.level < level:
                self.floors[LayerName(name)] = Floor(level=level, reason=reason)

    def _take(self, rung: int, prepared: Prepared, result: Result, ledger: Path) -> None:
        """Take what a search has found into the composition."""
        names = prepared.case.model.table.names
        has_answer = bool(result.rungs)
        # Without an answer every candidate stays in the upper type.
        kept = [LayerName(name) for name in result.kept] if has_answer else list(names)
        self.composition = self.composition.lowered(frozenset(names).difference(kept))
        no_answer = result.status in WITHOUT_ANSWER
        self.steps.append(
            RungSearch(
                rung=rung,
                prepared=prepared,
                result=result,
                kept=kept,
                after=self.composition,
                ledger=ledger,
                answered=not no_answer and (has_answer or bool(self.steps)),
            )
        )


def _in_rung(observer: Observer, rung: str) -> Observer:
    """Return an observer that passes events on, and says in which rung a run began."""

    def tell(event: Event, /) -> None:
        observer(replace(event, rung=rung) if isinstance(event, RunStarted) else event)

    return tell


def _once(observer: Observer) -> Observer:
    """Return an observer that passes a warning on only once: every rung repeats the model's."""
    messages: set[str] = set()

    def tell(event: Event, /) -> None:
        if isinstance(event, Warned):
            if event.message in messages:
                return
            messages.add(event.message)
        observer(event)

    return tell
