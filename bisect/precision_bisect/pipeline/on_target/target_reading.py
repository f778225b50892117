"""`precision-bisect target RUN --read DIR`: the verdict on what came back; nothing is trusted."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

from precision_bisect.backends.inspection.engine_layers import parse_json
from precision_bisect.backends.inspection.honoured import judge_layers
from precision_bisect.backends.trtexec.trtexec_results import (
    DIGITS,
    first_trouble,
    read_outputs,
    read_text,
    read_times,
)
from precision_bisect.errors import RunFolderError, shortened
from precision_bisect.exports.export import Export, NotWritable
from precision_bisect.machine.plain_files import plain_size
from precision_bisect.pipeline.on_target.exchange import (
    BUILD_LOG,
    ENGINE,
    ENGINE_BYTES,
    FP32,
    LAYER_INFO,
    MANIFEST,
    SCRIPT,
    Manifest,
    Subject,
    log_file,
    output_file,
    times_file,
    typed_point,
)
from precision_bisect.protocols import Comparator, Sample
from precision_bisect.runs.locking import RunLock
from precision_bisect.runs.results.on_target import OnTarget, PointOnTarget
from precision_bisect.runs.runfolder import TARGET, RunFolder
from precision_bisect.runs.typed_json import read_typed
from precision_bisect.search.evaluation import judge_outputs
from precision_bisect.trial import LayerHonour, Verdict

P = ParamSpec("P")
T = TypeVar("T")


def read_target(subject: Subject, where: Path, comparator: Comparator) -> OnTarget:
    """Judge what came back in a folder.

    What is missing or damaged costs only itself. Raises RunFolderError for a folder that is not
    of this run, and where nothing has come back at all.
    """
    _check(subject, where)
    points = [
        _point(subject, name, export, where / name, comparator)
        for name, export in subject.points.items()
    ]
    if not any(each.samples or each.layers or each.engine_bytes for each in points):
        first = next((f"; {lack}" for each in points for lack in each.lacks), "")
        raise RunFolderError(
            f"nothing of the target is in {where}{first}",
            f"call sh {SCRIPT} in it on the target, and copy it back",
        )
    kept = (*subject.finished.fixed, *subject.finished.kept)
    return OnTarget(samples=len(subject.inputs), kept=kept, points=points)


def record(found: OnTarget, run: Path) -> None:
    """Write what was found into the run folder. Raises RunFolderError."""
    with RunLock(run):
        RunFolder(run).write(TARGET, found.to_json())


def _check(subject: Subject, where: Path) -> None:
    hint = "name the folder that --write has made, whole as it came back"
    try:
        there = read_typed(Manifest, where / MANIFEST)
    except OSError as error:
        raise RunFolderError(f"cannot read {where / MANIFEST}: {error.strerror}", hint) from error
    except ValueError as error:
        raise RunFolderError(f"{where / MANIFEST} is damaged: {error}", hint) from error
    ours = subject.manifest
    if there.run != ours.run:
        raise RunFolderError(f"{where} was written for another run than {subject.run}", hint)
    if there.samples != ours.samples or {n: tuple(k) for n, k in there.points.items()} != dict(
        ours.points
    ):
        raise RunFolderError(
            f"{subject.run} has gone on since {where} was written, and has other plans",
            "write a new folder by --write",
        )


def _point(
    subject: Subject, name: str, export: Export, folder: Path, comparator: Comparator
) -> PointOnTarget:
    lacks: list[str] = []
    size = _tried(lacks, _engine_bytes, folder)
    if size is None:
        lacks.append(f"no engine{first_trouble(folder / BUILD_LOG)}")
    specs = subject.model.outputs
    outputs: list[Sample] = []
    wanted: list[Sample] = []
    times: list[float] = []
    for number, reference in enumerate(subject.outputs):
        found = _tried(lacks, read_outputs, folder / output_file(number), specs, subject.called)
        if found is not None:
            outputs.append(found)
            wanted.append(reference)
            times += _tried(lacks, read_times, folder / times_file(number)) or []
        elif size is not None:
            lacks.append(
                f"no outputs of sample {number}{first_trouble(folder / log_file(number))}"
            )
    judged = judge_outputs(comparator, outputs, wanted) if outputs else None
    layers: Sequence[LayerHonour] | None = ()
    if size is not None and name != FP32:
        layers = _tried(lacks, _layers, subject, export, folder / LAYER_INFO)
    if layers is None:
        lacks.append(f"without {LAYER_INFO} it does not show what the engine honours")
    return PointOnTarget(
        point=name,
        kept=len(export.kept),
        samples=len(outputs),
        passed=judged.verdict is Verdict.PASS if judged else None,
        error=judged.error if judged else None,
        message=judged.message if judged else "",
        latency_ms=statistics.median(times) if times else None,
        engine_bytes=size,
        layers=layers or (),
        lacks=lacks,
    )


def _tried(lacks: list[str], read: Callable[P, T], *args: P.args, **more: P.kwargs) -> T | None:
    """Return what is read; None where it is missing, or damaged, which is noted."""
    try:
        return read(*args, **more)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, NotWritable) as error:
        lacks.append(shortened(str(error)))
        return None


def _engine_bytes(folder: Path) -> int:
    """Return the bytes of the engine, as noted or of the file. Raises OSError, ValueError."""
    try:
        text = read_text(folder / ENGINE_BYTES)
    except FileNotFoundError:
        return plain_size(folder / ENGINE)
    if not DIGITS.fullmatch(text):
        raise ValueError(f"{ENGINE_BYTES} holds no size")
    return int(text)


def _layers(subject: Subject, export: Export, path: Path) -> Sequence[LayerHonour]:
    """Return what the engine does with kept layers. Raises OSError, ValueError, NotWritable."""
    found = parse_json(read_text(path))
    if not found:
        raise ValueError(f"{path.name} is damaged: it lists no layers")
    typed = typed_point(subject, export)
    return judge_layers(export.model, export.plan, typed, found, export.pair, rtx=False)
