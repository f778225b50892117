"""`precision-bisect target RUN`: the folder that goes to the target, and the verdict on it.

Nothing that comes back is trusted.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from precision_bisect.backends.inspection.honoured import judge_layers
from precision_bisect.backends.timing import latency_of
from precision_bisect.backends.trtexec import trtexec_flags as flags
from precision_bisect.backends.trtexec import trtexec_results as results
from precision_bisect.errors import RunFolderError, UsageError, counted, printable, shortened
from precision_bisect.exports.export import Export, NotWritable
from precision_bisect.exports.write import save_mixed
from precision_bisect.graphs.types import TensorSpec
from precision_bisect.judging.comparators.choose_comparator import ReadyMade
from precision_bisect.judging.comparators.script import judge_outputs
from precision_bisect.judging.comparators.task_heads import image_sizes
from precision_bisect.machine.plain_files import plain_size, remove_debris, whole
from precision_bisect.pipeline.on_target.exchange import (
    MANIFEST,
    WHOLE,
    Subject,
    named_model,
    read_manifest,
    typed_point,
)
from precision_bisect.pipeline.on_target.own_comparison import own_comparison
from precision_bisect.pipeline.on_target.target_script import (
    BATCH,
    BUILD_LOG,
    ENGINE,
    ENGINE_BYTES,
    INPUTS,
    REFERENCES,
    RUN_LOG,
    SCRIPT,
    SHARED_MODEL,
    array_file,
    timed_runs,
    write_script,
)
from precision_bisect.protocols import Comparator, Sample
from precision_bisect.runs import plain_json
from precision_bisect.runs.locking import RunLock
from precision_bisect.runs.results.on_target import FP32, OnTarget, PointOnTarget
from precision_bisect.runs.runfolder import TARGET, RunFolder, folder_errors
from precision_bisect.trial import LayerHonour, Verdict

_NO_LOG = "no log says why"
# A file that is there as long as the folder is not whole.
_HALF = ".half-written"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The folder, its points, those that are left out with the reason, and how many samples."""

    folder: Path
    points: Sequence[str]
    samples: int
    left_out: Mapping[str, str]

    def to_text(self) -> str:
        """Return what it holds, a line for each point that is left out, and what to do with it."""
        holds = f"{counted(len(self.points), 'plan')} ({', '.join(self.points)})"
        return (
            printable(f"{self.folder}: {holds}, {counted(self.samples, 'sample')}")
            + "".join(f"\n  {name}: {printable(why)}" for name, why in self.left_out.items())
            + f"\nCopy it to the target, call sh {SCRIPT} in it, copy it back, then --read it.\n"
        )

    def to_json(self) -> str:
        plain = {
            "folder": str(self.folder),
            "points": self.points,
            "samples": self.samples,
            "left_out": self.left_out,
        }
        return plain_json.dumps(plain, indent=2) + "\n"


def write_target(subject: Subject, where: Path, comparator: Comparator) -> Written:
    """Write the folder of a run; on the target trtexec may compare as the comparator does.

    What a killed writer left is written anew. Raises UsageError for a folder that holds something
    else, and for a plan that no model can say, and RunFolderError where it cannot be written.
    """
    try:
        _clear_half(subject, where)
        if any(where.iterdir()):
            raise UsageError(f"{where} is not empty", "name a new folder by --write")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RunFolderError(
            f"cannot look into {where}: {error.strerror}", "name another folder by --write"
        ) from error
    try:
        _write_all(subject, where, comparator)
    except NotWritable as why:
        raise UsageError(f"the folder cannot be written: {why}", "see --help of target") from why
    except RunFolderError as error:
        raise RunFolderError(error.message, "name another folder by --write") from error
    return Written(
        folder=where,
        points=tuple(subject.points),
        samples=len(subject.inputs),
        left_out=subject.left_out,
    )


def _clear_half(subject: Subject, where: Path) -> None:
    """Remove what a killed writer left; what anybody else has put there stays. Raises OSError."""
    if not (where / _HALF).is_file():
        return
    files = (SHARED_MODEL, f"{SHARED_MODEL}.data", SCRIPT, MANIFEST)
    remove_debris(where, files)
    for name in files:
        (where / name).unlink(missing_ok=True)
    for name in (INPUTS, REFERENCES, *subject.points, *subject.left_out):
        if (where / name).is_dir() and not (where / name).is_symlink():
            shutil.rmtree(where / name)
    (where / _HALF).unlink()


def _write_all(subject: Subject, where: Path, comparator: Comparator) -> None:
    """Write what belongs into the folder. Raises as `write_target` does, and NotWritable."""
    script = write_script(subject, own_comparison(subject, comparator))
    folder, model = RunFolder(where), subject.model
    folder.write(_HALF, "")
    for name, export in subject.points.items():
        folder_of_point = RunFolder(where / name)
        if subject.weak is None:
            save_mixed(folder_of_point, typed_point(subject, export))
    if subject.weak is not None:
        save_mixed(folder, named_model(subject), SHARED_MODEL)
    _write_arrays(where, INPUTS, model.inputs, timed_runs(subject))
    _write_arrays(where, REFERENCES, model.outputs, dict(enumerate(subject.outputs)))
    folder.write(SCRIPT, script)
    # Last, so that a folder that has it is complete.
    folder.write(MANIFEST, plain_json.dumps(subject.manifest, indent=2) + "\n")
    folder.remove(_HALF)


def _write_arrays(
    where: Path, folder: str, specs: Sequence[TensorSpec], samples: Mapping[int | str, Sample]
) -> None:
    """Write inputs or references as trtexec loads them."""
    RunFolder(where / folder)
    for sample, arrays in samples.items():
        for number, spec in enumerate(specs):
            path = where / array_file(folder, sample, number)
            with folder_errors(path), whole(path) as stream:
                stream.write(flags.raw(arrays[spec.name]))


P = ParamSpec("P")
T = TypeVar("T")


def read_target(subject: Subject, where: Path, comparator: Comparator) -> OnTarget:
    """Judge what came back in a folder.

    What is missing or damaged costs only itself. Raises RunFolderError for a folder that is not
    of this run, and where nothing has come back at all, UsageError for outputs unlike the check's.
    """
    _check(subject, where)
    if isinstance(comparator, ReadyMade):
        sizes = image_sizes(subject.case.model, subject.inputs)
        comparator = comparator.fitted(subject.outputs, sizes)
    points = [
        _point(subject, name, export, where / name, comparator)
        for name, export in subject.points.items()
    ]
    # An empty folder is one that was never on the target; a part is judged.
    if not any(point.samples or point.layers or point.engine_bytes for point in points):
        first = next((f"; {lack}" for point in points for lack in point.lacks), "")
        raise RunFolderError(
            f"nothing of the target is in {where}{first}",
            f"call sh {SCRIPT} in it on the target, and copy it back",
        )
    kept = (*subject.case.finished.fixed, *subject.case.finished.kept)
    facts = results.joined_facts(
        [
            results.read_facts(where / name / log)
            for name in subject.points
            for log in (BUILD_LOG, RUN_LOG.format(0))
        ]
    )
    return OnTarget(samples=len(subject.inputs), kept=kept, points=points, versions=facts)


def record(on_target: OnTarget, run: Path) -> None:
    """Write what was found into the run folder. Raises RunFolderError."""
    with RunLock(run):
        RunFolder(run).write(TARGET, on_target.to_json())


def _check(subject: Subject, where: Path) -> None:
    there, ours = read_manifest(where), subject.manifest
    if there.run != ours.run:
        raise RunFolderError(f"{where} was written for another run than {subject.run}", WHOLE)
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
    failed = results.failed_build(folder / BUILD_LOG) if size is None else None
    if size is None:
        lacks.append(f"no engine: {failed.to_text() if failed else _NO_LOG}")
    model = subject.model
    outputs: list[Sample] = []
    wanted: list[Sample] = []
    for number, reference in enumerate(subject.outputs):
        path = folder / flags.OUTPUT.format(number)
        sample = _tried(lacks, results.read_outputs, path, model.outputs, subject.called)
        if sample is not None:
            outputs.append(sample)
            wanted.append(reference)
        # Without an engine every sample lacks outputs: said once, above.
        elif size is not None:
            why = results.trouble(folder / RUN_LOG.format(number)) or _NO_LOG
            lacks.append(f"no outputs of sample {number}: {why}")
    timed = range(len(subject.inputs)) if subject.time_batch is None else (BATCH,)
    files = [folder / flags.TIMES.format(number) for number in timed]
    times = [ms for file in files for ms in _tried(lacks, results.read_times, file) or ()]
    if size is not None and subject.time_batch is not None and not times:
        lacks.append(f"no times at batch {subject.time_batch}: the folder has none")
    judged = judge_outputs(comparator, outputs, wanted) if outputs else None
    latency = latency_of(times, "cuda_events") if times else None
    layers: Sequence[LayerHonour] | None = ()
    if size is not None and name != FP32:
        layers = _tried(lacks, _layers, subject, export, folder / flags.LAYER_INFO)
    if layers is None:
        lacks.append(f"without {flags.LAYER_INFO} it does not show what the engine honours")
    return PointOnTarget(
        point=name,
        kept=len(export.kept),
        samples=len(outputs),
        passed=judged.verdict is Verdict.PASS if judged else None,
        error=judged.error if judged else None,
        message=judged.message if judged else "",
        latency_ms=latency.median_ms if latency else None,
        latency_spread_ms=latency.spread_ms if latency else None,
        latency_batch=subject.time_batch if latency else None,
        engine_bytes=size,
        layers=layers or (),
        failed=failed,
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
        text = results.read_text(folder / ENGINE_BYTES)
    except FileNotFoundError:
        return plain_size(folder / ENGINE)
    if not results.DIGITS.fullmatch(text):
        raise ValueError(f"{ENGINE_BYTES} holds no size")
    return int(text)


def _layers(subject: Subject, export: Export, path: Path) -> Sequence[LayerHonour]:
    """Return what the engine does with kept layers. Raises OSError, ValueError, NotWritable."""
    layers = results.read_layers(path)
    typed = typed_point(subject, export) if subject.weak is None else None
    return judge_layers(export.model, export.plan, typed, layers, export.pair, rtx=False)
