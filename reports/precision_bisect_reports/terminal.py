"""The terminal report: a live line on a terminal, plain lines in logs, and the final screen.

In a notebook the live line is in the output of its cell.

NO_COLOR and FORCE_COLOR are honoured by rich. Progress goes to standard error, the final screen to
standard output.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from precision_bisect.errors import counted, printable
from precision_bisect.machine.stopping import turn_away
from precision_bisect.runs.monitoring.attend import command_line
from precision_bisect.runs.monitoring.events import (
    Event,
    InputRead,
    RunStarted,
    SamplesRead,
    TrialFinished,
    TrialsEnded,
    Warned,
)
from precision_bisect.runs.monitoring.run_progress import STEPS, Progress
from precision_bisect.runs.monitoring.run_watch import spent, spoken
from precision_bisect.runs.results.result import Result
from precision_bisect.settings.sample_options import ImageOptions
from precision_bisect.settings.targets import FUSED, TF32
from precision_bisect.trial import Identity, Outcome, Phase, Proposal, Trial
from precision_bisect_reports.promise import names_of
from precision_bisect_reports.summary import MOST_LINES, WIDTH, final_screen

TITLES = {
    Phase.PREFLIGHT: "Preflight",
    Phase.RANKING: "Ranking",
    Phase.CURVE: "Curve",
    Phase.PREDICTION: "Prediction",
    Phase.SEARCH: "Search",
    Phase.CERTIFICATE: "Certificate",
    Phase.SPEED: "Speed",
    Phase.RECHECK: "Re-check",
    Phase.EXPLANATION: "Explanation",
}


def sentence(progress: Progress) -> str:
    """Return one plain sentence: what is done, the best plan so far, the time that is left."""
    if progress.started is None:
        return "Starting"
    return f"{STEPS[progress.step]}: {progress.done:.0%}, {', '.join(figures(progress))}"


def figures(progress: Progress) -> Iterator[str]:
    """Yield what was spent, the best plan so far, and the time that is left."""
    yield spent(progress.builds, progress.evaluations).removesuffix(" of the emulator")
    if len(progress.in_flight) > 1:
        yield f"{len(progress.in_flight)} side by side"
    if best := progress.shown_best:
        yield f"best {best.kept} of {progress.candidates}"
    if progress.speedup is not None:
        yield f"last {progress.speedup:.3g} times as fast as all high"
    if seconds := progress.seconds_left:
        yield f"{spoken(max(1, round(seconds)))} left"


def trial_line(proposal: Proposal, outcome: Outcome) -> str:
    """Return why a plan was tried and what came of it; "" for a forecast, there are so many."""
    if proposal.phase in (Phase.RANKING, Phase.PREDICTION):
        return ""
    case = f" ({proposal.case})" if proposal.case else ""
    what = f"{TITLES[proposal.phase]}{case}, {len(proposal.plan)} kept: {proposal.reason}"
    return f"  {what} -> {verdict(outcome)}"


def verdict(outcome: Outcome) -> str:
    """Return the verdict with the error, or why there is none."""
    if outcome.verdict is None:
        return f"{outcome.status}: {outcome.message}"
    figure = "" if outcome.error is None else f", error {outcome.error:.4g}"
    return f"{outcome.verdict}{figure}"


_BAR = 12
# Columns of the step, the bar and the share, beside the figures.
_BESIDE = 10 + 1 + _BAR + 1 + 4 + 2
NARROWEST = 40
WIDEST = 120
"""Longer lines are hard to read."""
MOST_INPUTS = 4
"""Of more inputs only these are told of."""
# A cell's line is drawn anew at most this often: each time is a message to the browser.
_CELL_INTERVAL_S = 0.2
PLAIN_INTERVAL_S = 10.0
"""Plain logs get a line at least this often while a phase goes on."""


class _Lasting(Console):
    """A console that falls silent where its reader has gone; rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Write nothing from now on."""
        self.quiet = True
        turn_away(self.file)


class _Cell:
    """A line in the output of a notebook's cell; rich's own `Live` needs ipywidgets for one."""

    def __init__(self, line: Callable[[], RenderableType], clock: Callable[[], float]) -> None:
        self._line, self._clock, self._drawn_at = line, clock, clock()

    def start(self) -> None:
        """Draw the line for the first time."""
        from IPython import display

        show: Callable[..., Any] = display.display  # it has no types
        self._handle = show(self._line(), display_id=True)

    def refresh(self) -> None:
        """Draw the line, if the last time is long enough ago."""
        if self._clock() - self._drawn_at >= _CELL_INTERVAL_S:
            self._drawn_at = self._clock()
            self._handle.update(self._line())

    def stop(self) -> None:
        """Take the line away."""
        self._handle.update(Text())


class TerminalReport:
    """Watches one run. Use as a context manager; call it with events; end with `conclude`."""

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        *,
        clock: Callable[[], float] = time.monotonic,
        explain: bool = False,
        quiet: bool = False,
    ) -> None:
        self._explain, self._quiet = explain, quiet
        self._explained: set[Identity] = set()
        self._out = _Lasting(file=out, highlight=False, soft_wrap=True)
        self._err = _Lasting(file=err, highlight=False)
        # A cell has no width of its own to fold at, other than a file or a pipe.
        self._err.soft_wrap = not (err.isatty() or self._err.is_jupyter)
        self._clock = clock
        self._progress = Progress()
        self._spoken_at = clock()
        self._told: tuple[int, int | None] = (-1, None)
        self._spinner = Spinner("dots", Text("Reading the model"))
        self._live: Live | _Cell | None = None

    def __enter__(self) -> "TerminalReport":
        if self._quiet:
            return self
        if self._err.is_jupyter:
            self._live = _Cell(self.line, self._clock)
        elif self._err.is_terminal:
            self._live = Live(
                console=self._err, transient=True, refresh_per_second=8, get_renderable=self.line
            )
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        """Take one event; print what belongs to the record."""
        self._progress.take(event)
        if isinstance(self._live, _Cell):
            self._live.refresh()
        if self._quiet and not isinstance(event, Warned):
            return
        match event:
            case RunStarted():
                self._say(_opening(event))
                if event.why or event.target:
                    self._say(_why(event))
            case SamplesRead():
                self._say(_samples(event))
            case Warned():
                self._say(f"Warning: {event.message}", "yellow")
            case TrialFinished():
                self._trial(event)
            case TrialsEnded() if self._live is None and not self._explain:
                self._tell_news()
            case _:
                pass

    def conclude(self, result: Result, model: Path) -> None:
        """Print the final screen."""
        self.__exit__()
        self._print_screen(result, model, command_line())

    def show(self, result: Result, model: Path, trials: Sequence[Trial] = ()) -> None:
        """Print the final screen of a run that ended before, after its trials."""
        for trial in trials:
            if line := trial_line(trial.proposal, trial.outcome):
                self._out.print(Text(printable(line)))
        self._print_screen(result, model)

    def _print_screen(self, result: Result, model: Path, command: Sequence[str] = ()) -> None:
        """Print the final screen, as wide as a terminal but for `NARROWEST` and `WIDEST`.

        With -v it has all that there is to say.
        """
        width, most = WIDTH, math.inf if self._explain else MOST_LINES
        if self._out.is_terminal:
            width = min(WIDEST, max(NARROWEST, self._out.width))
        for part in final_screen(result, model, width, command, most):
            self._out.print(part)

    def _trial(self, event: TrialFinished) -> None:
        """Print preflight verdicts always, on a plain log better plans, and a line at times."""
        if self._explain:
            line = trial_line(event.proposal, event.outcome)
            if line and event.proposal.identity not in self._explained:
                self._explained.add(event.proposal.identity)
                self._say(line)
            return
        if event.recalled:
            return
        if event.proposal.phase is Phase.PREFLIGHT and {*event.proposal.case.split(",")} <= {
            "",
            TF32,
            FUSED,
        }:
            self._say(f"  {event.proposal.reason}: {verdict(event.outcome)}")
        elif self._live is None:
            self._tell_news()

    def _tell_news(self) -> None:
        """Print a line if the run has come to another step or plan, or none was for long."""
        best = self._progress.best
        news = (self._progress.step, None if best is None else len(best.proposal.plan))
        overdue = self._clock() - self._spoken_at >= PLAIN_INTERVAL_S
        if overdue or news != self._told:
            self._say(f"  {sentence(self._progress)}")
        self._told = news

    def _say(self, line: str, style: str = "") -> None:
        self._spoken_at = self._clock()
        self._err.print(Text(printable(line), style=style))

    def line(self) -> RenderableType:
        """Return the bar with its figures on one line; a narrow one has what fits of them."""
        progress = self._progress
        if progress.started is None:
            return self._spinner.text if isinstance(self._live, _Cell) else self._spinner
        parts, room = list(figures(progress)), self._err.width - _BESIDE
        while len(parts) > 1 and len(", ".join(parts)) > room:
            del parts[0]
        line = Table.grid(padding=(0, 1))
        line.add_row(
            Text(f"{STEPS[progress.step]:<10}"),
            ProgressBar(total=1.0, completed=progress.done, width=_BAR),
            Text(f"{progress.done:4.0%}  {', '.join(parts)}", no_wrap=True),
        )
        return line


def _opening(event: RunStarted) -> str:
    held_out = f", {event.held_out} held out" if event.held_out else ""
    done = f"{'' if event.backend == 'emulated' else 'builds and '}evaluations"
    recalled = f", resuming after {event.resumed_trials} {done}" if event.resumed_trials else ""
    workers = f", {event.workers} workers" if event.workers > 1 else ""
    limit = "" if event.tolerance is None else f", tolerance {event.tolerance:g}"
    limit += f" (a multiple of {event.limits})" if event.limits else ""
    limit += f", {event.speed}" if event.speed else ""
    samples = counted(event.samples, "sample")
    nodes = counted(event.layers_total, "node")
    rung = f"{event.rung}: " if event.rung else ""
    return (
        f"{rung}{event.model}: {event.candidates} of {nodes} are candidates, "
        f"{samples}{held_out}{limit}, {event.backend} backend{workers}, "
        f"strategy {event.strategy}{recalled}"
    )


def _samples(event: SamplesRead) -> str:
    """Say what was read, and what cannot be seen to be right: the order of the channels."""
    count = "1 sample" if event.samples == 1 else f"{event.samples} samples"
    first = f" (figures of the first {event.looked_at})" if event.looked_at < event.samples else ""
    inputs = [_input(read) for read in event.inputs[:MOST_INPUTS]]
    if more := len(event.inputs) - len(inputs):
        inputs.append(f"{more} more inputs")
    images = "" if event.images is None else f"; {_images(event.images)}"
    where = f" from {event.path}" if event.path else ""
    return f"Read {count}{where}{first}: {'; '.join(inputs)}{images}"


def _input(read: InputRead) -> str:
    shapes = " or ".join(f"({', '.join(map(str, shape))})" for shape in read.shapes[:2])
    others = ", …" if len(read.shapes) > 2 else ""
    values = ""
    if read.lowest is not None:
        values = f", {read.lowest:.3g} to {read.highest:.3g}, mean {read.mean:.3g}"
    return f"{read.name} {read.dtype} {shapes}{others}{values}"


def _images(images: ImageOptions) -> str:
    """Say how images became an input; of the two orders the other one is named."""
    width, height = images.image_size or ("?", "?")
    other = "bgr" if images.channels == "rgb" else "rgb"
    return (
        f"images of {width}x{height} (width x height), {images.layout}, {images.channels} (if "
        f"training had the other order: --channels {other})"
    )


def _why(event: RunStarted) -> str:
    """Say why this backend judges; of the emulator, for what, and who tells what is missing."""
    if event.target:
        why = ": no engine runs here, `precision-bisect doctor` says why" if event.why else ""
        return f"The emulator judges, for {names_of(event.target)}{why}"
    return f"Backend {event.backend}, since {event.why}"
