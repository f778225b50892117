"""Which of the layers that the user asked for low break the tolerance, every other one high.

A search tells, as a case of the same run: over these layers alone, all others fixed in the high
type.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from precision_bisect.errors import counted, first_of, printable
from precision_bisect.execution.executor import Executor
from precision_bisect.layer_table import LayerName, LayerTable
from precision_bisect.pipeline.loading import Loaded
from precision_bisect.pipeline.prepare import Prepared, assemble
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.runs.results.endings import Ending, Status
from precision_bisect.trial import CaseName

_NAMED = 3
LOW_ONLY: CaseName = "low-only"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedLow:
    """The layers asked for low of a run that was loaded; `work` is an empty folder."""

    loaded: Loaded
    executor: Executor
    work: Path

    def __bool__(self) -> bool:
        return bool(self.names)

    @property
    def names(self) -> frozenset[LayerName]:
        low = self.loaded.case.options.pairs[0].low_form
        return frozenset(
            name for name, form in self.loaded.case.model.table.asked.items() if form == low
        )

    def prepared(self) -> Prepared:
        """Return the search over these layers alone. Raises as `assemble` does."""
        options, table = self.loaded.case.options, self.loaded.case.model.table
        lowest, highest = options.pairs[0], options.pairs[-1]
        layers = tuple(
            replace(layer, exclusion=None, detail="", fixed=None)
            if layer.name in self.names
            else layer
            for layer in table.layers
        )
        model = replace(
            self.loaded.case.model,
            table=LayerTable(layers).asking(dict.fromkeys(table.names, highest.high_form)),
        )
        options = replace(
            options,
            low=lowest.low,
            high=lowest.high,
            ladder=(),
            copies=0,
            copies_failing=0,
            certify="none",
            risk=None,
            until="answer",
            max_latency_ms=None,
            min_speedup=None,
            resume=False,
            # No engine of this search is the run's.
            out=self.work,
        )
        self.work.mkdir()
        case = replace(self.loaded.case, options=options, model=model)
        loaded = replace(self.loaded, case=case, begun_with=frozenset())
        return assemble(loaded, ignore, self.work, executor=self.executor)

    def blamed(self, prepared: Prepared, ended: Ending, error: float | None) -> Ending:
        """Return the ending of the run, whose search of these layers has `ended` so.

        The `error` is that with all of them low.
        """
        # Cut off, it has not shown that the model holds with these layers high.
        if ended.plan is None and ended.status is not Status.INFEASIBLE:
            return Ending(status=ended.status, message=ended.message)
        options, names = self.loaded.case.options, prepared.case.model.table.names
        which = f"the {counted(len(self.names), 'layer')} of --low-only"
        if ended.status is Status.FOUND and ended.plan is not None:
            named = [printable(names[i]) for i in ended.plan.indices]
            which = f"{first_of(named, _NAMED)} of --low-only"
        figure = "" if error is None else f" (error {error:.4g})"
        return Ending(
            status=Status.INFEASIBLE,
            message=f"even with every other layer {options.pairs[-1].high.upper()}, {which} "
            f"cannot be {options.pairs[0].low.upper()}{figure}: leave that out, or allow more by "
            "--tol",
        )
