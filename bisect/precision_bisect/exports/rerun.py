"""What an exported file computes here: run as it is, and held against what the run has judged.

ONNX Runtime's CPU computes most operators of FP16 in FP32, some in FP16, and lacks others. So no
figure of it is a verdict on precision, but a file that is another network shows. Where it is over
the limit, or does not run, the file is computed in FP32 with every tensor rounded to its type:
what is far over the limit then, too, is not what was judged.
"""

import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.errors import ModelError, PrecisionBisectError
from precision_bisect.graphs.graph import refill
from precision_bisect.graphs.interface import Interface
from precision_bisect.graphs.ort import (
    AS_IT_IS,
    LEVELS,
    LacksKernel,
    Session,
    open_file,
    ort_message,
    runtime,
    use_custom_ops,
)
from precision_bisect.graphs.types import (
    declared_low,
    in_fp32,
    infer_elem_types,
    rounded_where_declared,
)
from precision_bisect.graphs.weights import take_weights
from precision_bisect.judging.inputs.loops import PLAIN, Loop
from precision_bisect.machine.stopping import TimedOut
from precision_bisect.protocols import Comparator, Judgement, Sample
from precision_bisect.runs.results.deployment import Crash, Doing
from precision_bisect.trial import Verdict

FAR = 2.0
"""Multiple of the tolerance from which an error is no matter of how one and the same network is
rounded. A bound: on 75 plans of random graphs the file so computed has the emulator's error, and
as it is, on the CPU, up to 1.5 times that."""
_EXACT = "precision_bisect/exact"
_GIVEN, _STEP, _CAME = "rerun.pickle", "step.pickle", "rerun.npz"
# What ONNX Runtime says of a function's node. It writes out what it has no kernel for, and such a
# body may not take the type: that of Clip has a Where, without BF16 before opset 16.
_IN_FUNCTION = re.compile(r"^This is an invalid model\. Type Error: .* in node \(\) is invalid")


class NotRun(Exception):
    """This ONNX Runtime cannot run a file that may be right; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeds:
    """What a fresh process runs a file on.

    Without `samples` it takes those that are `stored` beside the file, if any are. `known` tells
    that ONNX Runtime runs the given model here, so that it has all operators. Of a `large` file
    nothing is rewritten, which would take the weights in FP32 as well. Nor of one that the
    optimizer breaks, as it fuses neighbours of two types into one node, unless it has to open
    `by_defaults`. A `level` of optimisation is the only one. A `loop` runs each sample.
    """

    samples: Sequence[Sample] | None = None
    stored: bool = True
    custom_ops: Sequence[Path] = ()
    threads: int = 0
    known: bool = True
    large: bool = False
    by_defaults: bool = False
    level: str = ""
    loop: Loop = PLAIN

    @property
    def levels(self) -> Sequence[str]:
        """The levels to open a file with, until one does."""
        if self.level or self.large:
            return (self.level or AS_IT_IS,)
        return LEVELS[:1] if self.by_defaults else (LEVELS[0], AS_IT_IS)

    def save(self, work: Path) -> None:
        """Have the process find this in its folder."""
        (work / _GIVEN).write_bytes(pickle.dumps(self))


def feeds_in(work: Path) -> Feeds:
    """Return what the process that began this one has left in its own folder."""
    feeds: Feeds = pickle.loads((work / _GIVEN).read_bytes())
    return feeds


def begins(work: Path, library: str, doing: Doing, level: str = "") -> None:
    """Have it known what a library is about to do with the file, in case that ends the process."""
    step, whole = Crash(library=library, doing=doing, level=level), work / _STEP
    # Under its name once it is whole: something may end the process meanwhile.
    part = whole.with_suffix(".part")
    part.write_bytes(pickle.dumps(step))
    part.replace(whole)


def last_step(work: Path) -> Crash:
    """Return what a process was about to do when it ended."""
    step: Crash = pickle.loads((work / _STEP).read_bytes())
    return step


def run_file(path: Path, feeds: Feeds, samples: Sequence[Sample], work: Path) -> None:
    """Run a file on samples, and leave the outputs in a folder.

    Raises ModelError where it does not open, NotRun where that is for want of operators or
    kernels, or where it opens and does not run.
    """
    use_custom_ops(feeds.custom_ops)
    library = f"ONNX Runtime {runtime().__version__}"
    *others, level = feeds.levels
    try:
        for other in others:
            begins(work, library, "opens", other)
            with suppress(ModelError):
                session, level = open_file(path, feeds.threads, other), other
                break
        else:
            begins(work, library, "opens", level)
            session = open_file(path, feeds.threads, level)
    except LacksKernel as error:
        raise NotRun(f"ONNX Runtime's CPU lacks a kernel: {error}") from error
    except ModelError as error:
        if _IN_FUNCTION.match(error.message) and _is_well_typed(path):
            raise NotRun(f"ONNX Runtime's CPU lacks a kernel: {error.message}") from error
        if feeds.known:
            raise
        raise NotRun(f"ONNX Runtime opens neither it nor the model: {error.message}") from error
    types = {value.name: value.type for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    arrays: list[NDArray[Any]] = []

    def run(feed: Sample) -> Sample:
        values = session.run(names, {n: _as_taken(feed[n], types[n]) for n in types})
        return dict(zip(names, map(np.asarray, values), strict=True))

    begins(work, library, "runs", level)
    for sample in samples:
        try:
            outputs = feeds.loop(run, sample)
        except Exception as error:  # onnxruntime's classes share no base but Exception
            raise NotRun(f"ONNX Runtime's CPU does not run it: {ort_message(error)}") from error
        arrays += [outputs[name] for name in names]
    np.savez(work / _CAME, np.array(names, np.str_), *arrays)


def _is_well_typed(path: Path) -> bool:
    """Tell whether ONNX itself takes the types of a file."""
    try:
        onnx.checker.check_model(path, full_check=True)
    except Exception:  # onnx raises classes of its own
        return False
    return True


def _as_taken(array: NDArray[Any], kind: str) -> NDArray[Any]:
    """Return an array in the float type that an input has."""
    dtype = {"tensor(float16)": np.float16, "tensor(float)": np.float32}.get(kind)
    return array if dtype is None or array.dtype.kind != "f" else array.astype(dtype)


def outputs_in(work: Path) -> list[Sample]:
    """Return what the process has left. Raises OSError, ValueError or LookupError."""
    with np.load(work / _CAME, allow_pickle=False) as archive:
        named, *rest = [archive[key] for key in archive.files]
        names = [str(name) for name in named]
        starts = range(0, len(rest), len(names))
        return [
            dict(zip(names, rest[start : start + len(names)], strict=True)) for start in starts
        ]


def rounded_outputs(path: Path, feeds: Feeds) -> Iterator[Sample]:
    """Yield what a file gives in FP32 with every 16-bit tensor rounded to its type.

    Raises PrecisionBisectError, or RuntimeError where the run fails.
    """
    file = onnx.load(path, load_external_data=False)
    weights = take_weights(file, path.parent)
    interface = Interface.of(file.graph)
    low = declared_low(infer_elem_types(file, weights))
    proto, weights = in_fp32(file, weights)
    nodes = proto.graph.node
    refill(nodes, [n for node in nodes for n in rounded_where_declared(node, low, _EXACT)])
    # A large graph is optimised for longer than it runs.
    session = Session(proto, weights, feeds.threads, optimised=not feeds.large)
    names = [value.name for value in file.graph.input]

    def run(feed: Sample) -> Sample:
        return session.run(interface.rounded({name: feed[name] for name in names}))

    for sample in feeds.samples or ():
        yield feeds.loop(run, sample)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the outputs of a file are held against; its plan is within the comparator's limits."""

    reference: Sequence[Sample]
    comparator: Comparator

    def judged(self, outputs: Sequence[Sample]) -> Judgement:
        """Judge outputs in the types of the reference; one that is missing is a failure."""
        missing = sorted(self.reference[0].keys() - outputs[0].keys())
        if missing:
            return Judgement(verdict=Verdict.FAIL, error=None, message=f"no output {missing[0]!r}")
        typed = [
            {
                name: sample[name].astype(array.dtype, copy=False)
                for name, array in reference.items()
            }
            for sample, reference in zip(outputs, self.reference, strict=True)
        ]
        return self.comparator.judge(typed, self.reference)

    def refutes(self, judgement: Judgement) -> bool:
        """Tell whether the outputs are not those of the plan, however it is rounded."""
        limit, error = self.comparator.tolerance, judgement.error
        if judgement.verdict is not Verdict.FAIL or error is None or limit is None:
            return judgement.verdict is Verdict.FAIL
        return not error <= FAR * limit


def differing(path: Path, feeds: Feeds, expected: Expected, work: Path, *, ran: bool) -> str:
    """Return why a file is not what was judged, "" where nothing says so.

    `ran` tells that a process has left outputs. Raises TimedOut where an inference takes too long.
    """
    try:
        if ran and expected.judged(outputs_in(work)).verdict is Verdict.PASS:
            return ""
        judgement = expected.judged(list(rounded_outputs(path, feeds)))
    except RuntimeError as error:
        return f"it does not run: {error}" if feeds.known else ""
    except TimedOut:
        raise
    # A check of the user's may fail, a library lack an operator in FP32, too.
    except (PrecisionBisectError, OSError, ValueError, LookupError):
        return ""
    if not expected.refutes(judgement):
        return ""
    figure = "" if judgement.error is None else f"error {judgement.error:.4g}"
    what = ", ".join(filter(None, (figure, judgement.message))) or "the check says so"
    return f"it computes something else than what was judged: {what}"
