"""An evaluator that has every proposal evaluated in a child process, and what children printed."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import LifoQueue

from precision_bisect.errors import PrecisionBisectError
from precision_bisect.execution import child
from precision_bisect.execution.child import raised_outcome, tail, unreadable
from precision_bisect.execution.evaluator_spec import EvaluatorSpec
from precision_bisect.execution.slot import Death, Limits, Slot
from precision_bisect.options import Options
from precision_bisect.runs.belonging import new_log
from precision_bisect.runs.runfolder import LOGS
from precision_bisect.trial import Outcome, Phase, Proposal, TrialStatus

USUAL_ATTEMPTS = 2
DECISIVE_ATTEMPTS = 3
"""How often a trial is tried whose process died; trials that decide the run's ending once more.
Limits of what the user waits: each attempt may build anew."""
_DECISIVE = (Phase.PREFLIGHT, Phase.RECHECK)
# After these the child is replaced, since its CUDA context may be beyond use. A trial in which
# CUDA failed, or the GPU's memory was full, is tried once more in a new child: an earlier trial
# may have broken the context, or its engine hold the memory.
_RENEWED = (TrialStatus.RUN_FAILED, TrialStatus.RAISED, TrialStatus.OUT_OF_MEMORY)


@dataclass(frozen=True, slots=True)
class Logs:
    """Keeps logs in a folder, which is made for the first; a full disk costs only the log."""

    folder: Path

    def keep(self, log: Path, proposal: Proposal, outcome: Outcome) -> Outcome:
        """Copy the end of a log, and return the outcome with a message that names the copy."""
        try:
            end = tail(log)
            if not end:
                return outcome
            path = new_log(self.folder, outcome.status.value)
            heading = (
                f"{outcome.status}: {outcome.message}\n{proposal.phase}, {proposal.kind}, "
                f"{proposal.samples} samples, plan {proposal.plan.key}: {proposal.reason}\n\n"
            )
            path.write_bytes(heading.encode() + end)
        # A full disk does not cost the outcome; only its log is not kept.
        except OSError:
            return outcome
        message = f"{outcome.message}; what it printed is in {self.folder.name}/{path.name}"
        return replace(outcome, message=message)


@dataclass(slots=True, kw_only=True)
class Isolated:
    """Evaluates proposals in the children of its slots, one at a time in each.

    What a child printed is kept in `logs` if a trial has no verdict.
    """

    slots: Sequence[Slot]
    limits: Limits
    logs: Logs
    _free: "LifoQueue[Slot]" = field(init=False)
    _closed: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        # Last in, first out: a single caller always gets the same, warm child.
        self._free = LifoQueue()
        for slot in reversed(self.slots):
            self._free.put(slot)

    def __call__(self, proposal: Proposal) -> Outcome:
        """Evaluate a proposal; the end of its process is an outcome.

        Raises the PrecisionBisectErrors that end a run.
        """
        slot = self._free.get()
        try:
            outcome = self._evaluate(slot, proposal)
            # Kept before the slot is free: its next call empties the log.
            return outcome if outcome.verdict else self.logs.keep(slot.log, proposal, outcome)
        finally:
            self._free.put(slot)

    def close(self) -> None:
        """End all children; what they were evaluating is not tried again."""
        self._closed = True
        for slot in self.slots:
            with suppress(Exception):
                slot.end()

    def _evaluate(self, slot: Slot, proposal: Proposal) -> Outcome:
        attempts = DECISIVE_ATTEMPTS if proposal.phase in _DECISIVE else USUAL_ATTEMPTS
        for attempt in range(1, attempts + 1):
            try:
                outcome = slot.call(self.limits, child.evaluate_here, proposal)
                if not isinstance(outcome, Outcome):
                    raise unreadable()
            except Death as death:
                slot.end()
                if self._closed or not death.retry or attempt == attempts:
                    return death.outcome
            except PrecisionBisectError:
                raise
            except Exception as error:
                # The child could not begin, or its answer could not be sent.
                slot.end()
                return raised_outcome(error)
            else:
                if outcome.retry or outcome.status in _RENEWED:
                    slot.end()
                if not outcome.retry or self._closed or attempt > 1:
                    return outcome
        raise AssertionError("the last attempt returns")


def children(
    spec: EvaluatorSpec,
    work: Path,
    folder: Path,
    name: str = "worker",
    slots: Sequence[Slot] | None = None,
) -> Isolated:
    """Return what evaluates in one child process for each worker of a spec's options.

    `slots` are those of `slots_in`, made if they are not given. Logs go into the run folder,
    `folder`. Raises RunFolderError.
    """
    slots = slots or slots_in(work, spec.options, name)
    spec.save(slots[0].spec)
    return Isolated(slots=slots, limits=Limits.of(spec.options), logs=Logs(folder / LOGS))


def slots_in(work: Path, options: Options, name: str = "worker") -> Sequence[Slot]:
    """Return a slot for each worker, with files in `work` that begin with `name`."""
    hosts = options.engine.backend_options.get("host", "")
    hosts = hosts and f"host {hosts}"
    return [
        Slot(spec=work / f"{name}.spec", folder=work / f"{name}-{number}", gpu=gpu, hosts=hosts)
        for number, gpu in enumerate(options.gpus or [None] * options.workers, 1)
    ]
