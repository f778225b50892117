"""`precision-bisect status`: what a run is doing, read from its folder and from nothing else.

Only files are read, and none is opened for writing, so a run never notices.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from precision_bisect.errors import RunFolderError, counted, printable
from precision_bisect.runs import plain_json
from precision_bisect.runs.locking import Owner, owner_of
from precision_bisect.runs.results.run_status import RunStatus, StartedTrial
from precision_bisect.runs.results.saved import lacks
from precision_bisect.runs.runfolder import STATUS
from precision_bisect.runs.typed_json import foreign_file, read_file


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What a run folder tells: `told` is `status.json`, `state` what is true of it now.

    `state` is that of the file, or "starting" where a process has taken the folder and not begun
    to search yet, or "not_running" where the process that searched is gone. `running` tells
    whether a process is at work in the folder; None where that cannot be known from here.
    `silent_s` are the seconds since the file was written.
    """

    folder: Path
    state: str
    running: bool | None
    silent_s: float
    told: RunStatus

    def to_json(self) -> str:
        """Return the live status, with what is true now, as JSON text."""
        now = {
            "folder": str(self.folder),
            "state": self.state,
            "running": self.running,
            "silent_s": round(self.silent_s, 3),
        }
        return plain_json.dumps({**plain_json.plain(self.told), **now}, indent=2) + "\n"


def look(folder: Path) -> RunState:
    """Return what the run in a folder is doing. Raises RunFolderError where there is none."""
    run_state = _look(folder)
    # A run may begin between the looks at its two files; then a second look shows both.
    return _look(folder) if run_state.state == "not_running" else run_state


def _look(folder: Path) -> RunState:
    owner = owner_of(folder)
    status = _told(folder)
    try:
        updated = datetime.fromisoformat(status.updated)
        return RunState(
            folder=folder,
            state=_state(status, owner),
            running=False if owner is None else owner.alive,
            silent_s=max(0.0, (datetime.now(UTC) - updated).total_seconds()),
            told=status,
        )
    except (TypeError, ValueError) as error:
        raise foreign_file(folder / STATUS) from error


def _told(folder: Path) -> RunStatus:
    """Return the contents of the live status. Raises RunFolderError."""
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise RunFolderError(
            f"{folder} {what}", "name a run folder; one is made once the model has been read"
        )
    try:
        return read_file(RunStatus, folder / STATUS)
    except FileNotFoundError as error:
        raise lacks(folder, STATUS) from error


def _state(status: RunStatus, owner: Owner | None) -> str:
    """Return what is true of the run now."""
    alive = owner is not None and owner.alive is not False
    # Not by which is later: the clock may have been set in between.
    if owner is not None and alive and status.taken != owner.since:
        return "starting"
    if status.state == "searching" and not alive:
        return "not_running"
    return status.state


# After so long without a word a run on another host may have ended.
_SILENT_S = 60.0


def status_text(run_state: RunState) -> str:
    """Return what a run is doing for people, a line for each thing. Raises RunFolderError."""
    try:
        lines = [f"{run_state.folder}: {_headline(run_state)}"]
        lines += [f"  {label:<12}{text}" for label, text in _facts(run_state)]
    except (ValueError, ArithmeticError) as error:
        raise foreign_file(run_state.folder / STATUS) from error
    return "".join(f"{printable(line)}\n" for line in lines)


def _headline(run_state: RunState) -> str:
    status = run_state.told
    process = f"process {status.pid} on {status.host}"
    seconds = spoken(status.seconds)
    match run_state.state:
        case "starting":
            return "a process has taken it and will search soon; this was before"
        case "not_running":
            return f"not running, {process} is gone; go on with --resume"
        case "searching":
            late = run_state.running is None and run_state.silent_s > _SILENT_S
            heard = f", last heard of {spoken(run_state.silent_s)} ago" if late else ""
            return f"searching for {seconds}, {process}{heard}"
        case "finished":
            message = f" ({status.message})" if status.message else ""
            return f"finished after {seconds}: {status.status}{message}"
        case state:
            return f"{state} after {seconds}: {status.message}"


def spoken(seconds: float) -> str:
    """Return a span of time in its two largest units."""
    whole = round(seconds)
    for unit, size, part, smaller in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {part}"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{seconds:.3g} s"


def _facts(run_state: RunState) -> Iterator[tuple[str, str]]:
    """Yield each line's label and text."""
    status = run_state.told
    run, best, searching = status.run, status.best, status.state == "searching"
    rung = f", {run.rung}" if run.rung else ""
    yield "model", f"{run.model}, {run.backend} backend, strategy {run.strategy}{rung}"
    if searching and status.phase is not None:
        time = status.seconds_left
        remaining = f", about {spoken(max(1, round(time)))} left" if time else ""
        yield "done", f"{status.done:.0%}{remaining}; now: {status.phase}"
    if best is not None:
        yield "best", f"{best.kept} of {counted(run.candidates, 'layer')}{_error(best.error)}"
    else:
        yield "best", "no plan has passed yet" if searching else "no plan"
    yield "effort", _effort(status)
    for running in status.in_flight if run_state.state == "searching" else ():
        yield "in flight", f"{_named(running)}, for {spoken(running.seconds)}"
    for number, trial in enumerate(reversed(status.last)):
        verdict = trial.verdict or f"{trial.status}: {trial.message}"
        figures = f"{verdict}{_error(trial.error)}, {spoken(trial.wall_s)}"
        yield "last" if number == 0 else "", f"{_named(trial)}: {figures}"


def spent(builds: int, evaluations: int) -> str:
    """Return what a run has taken, in the words that every view of it has."""
    counts = []
    if builds:
        counts.append(counted(builds, "build"))
    if evaluations or not builds:
        counts.append(f"{counted(evaluations, 'evaluation')} of the emulator")
    return ", ".join(counts)


def _effort(run_status: RunStatus) -> str:
    """Return what the run has taken, and how many plans had no verdict."""
    resumed = run_status.run.resumed_trials
    before = f", after {resumed} of an earlier session" if resumed else ""
    unresolved = "".join(f", {count} {status}" for status, count in run_status.unresolved.items())
    return f"{spent(run_status.builds, run_status.evaluations)}{before}{unresolved}"


def _named(trial: StartedTrial) -> str:
    return f"{trial.phase}, {trial.kept} kept, {trial.reason}"


def _error(error: float | None) -> str:
    return "" if error is None else f", error {error:.4g}"
