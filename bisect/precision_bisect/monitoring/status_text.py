"""The live status in words."""

from collections.abc import Iterator

from precision_bisect.errors import counted, printable
from precision_bisect.monitoring.run_watch import RunState, foreign_status
from precision_bisect.results.run_status import Asked, RunStatus

_SILENT_S = 60.0
"""After so long without a word a run on another host may have ended."""


def status_text(seen: RunState) -> str:
    """Return what a run is doing for people, a line for each thing. Raises RunFolderError."""
    try:
        lines = [f"{seen.folder}: {_headline(seen)}"]
        lines += [f"  {label:<12}{text}" for label, text in _facts(seen)]
    except (ValueError, ArithmeticError) as error:
        raise foreign_status(seen.folder) from error
    return "".join(f"{printable(line)}\n" for line in lines)


def _headline(seen: RunState) -> str:
    told = seen.told
    process = f"process {told.pid} on {told.host}"
    seconds = spoken(told.seconds)
    match seen.state:
        case "starting":
            return "a process has taken it and will search soon; this was before"
        case "not_running":
            return f"not running, {process} is gone; go on with --resume"
        case "searching":
            late = seen.running is None and seen.silent_s > _SILENT_S
            heard = f", last heard of {spoken(seen.silent_s)} ago" if late else ""
            return f"searching for {seconds}, {process}{heard}"
        case "finished":
            message = f" ({told.message})" if told.message else ""
            return f"finished after {seconds}: {told.status}{message}"
        case state:
            return f"{state} after {seconds}: {told.message}"


def spoken(seconds: float) -> str:
    """Return a span of time in its two largest units."""
    whole = round(seconds)
    for unit, size, part, smaller in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {part}"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{seconds:.3g} s"


def _facts(seen: RunState) -> Iterator[tuple[str, str]]:
    """Yield each line's label and text."""
    told = seen.told
    run, best, searching = told.run, told.best, told.state == "searching"
    rung = f", {run.rung}" if run.rung else ""
    yield "model", f"{run.model}, {run.backend} backend, strategy {run.strategy}{rung}"
    if searching and told.phase is not None:
        time = told.seconds_left
        left = f", about {spoken(max(1, round(time)))} left" if time else ""
        yield "done", f"{told.done:.0%}{left}; now: {told.phase}"
    if best is not None:
        yield "best", f"{best.kept} of {counted(run.candidates, 'layer')}{_error(best.error)}"
    else:
        yield "best", "no plan has passed yet" if searching else "no plan"
    yield "effort", _effort(told)
    for running in told.in_flight if seen.state == "searching" else ():
        yield "in flight", f"{_named(running)}, for {spoken(running.seconds)}"
    for number, trial in enumerate(reversed(told.last)):
        said = trial.verdict or f"{trial.status}: {trial.message}"
        figures = f"{said}{_error(trial.error)}, {spoken(trial.wall_s)}"
        yield "last" if number == 0 else "", f"{_named(trial)}: {figures}"


def spent(builds: int, evaluations: int) -> str:
    """Return what a run has taken, in the words that every view of it has."""
    counts = []
    if builds:
        counts.append(counted(builds, "build"))
    if evaluations or not builds:
        counts.append(f"{counted(evaluations, 'evaluation')} of the emulator")
    return ", ".join(counts)


def _effort(told: RunStatus) -> str:
    """Return what the run has taken, and how many plans had no verdict."""
    resumed = told.run.resumed_trials
    before = f", after {resumed} of an earlier session" if resumed else ""
    odd = "".join(f", {count} {status}" for status, count in told.unresolved.items())
    return f"{spent(told.builds, told.evaluations)}{before}{odd}"


def _named(trial: Asked) -> str:
    return f"{trial.phase}, {trial.kept} kept, {trial.reason}"


def _error(error: float | None) -> str:
    return "" if error is None else f", error {error:.4g}"
