"""`precision-bisect target RUN`: the folder that goes to the target, and the verdict on it.

The script in it builds and runs each point with trtexec, in any POSIX shell. Nothing that comes
back is trusted.
"""

import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from precision_bisect.backends.inspection.honoured import judge_layers
from precision_bisect.backends.tensorrt.profiles import refuse_fixed_batch
from precision_bisect.backends.timing import latency_of
from precision_bisect.backends.trtexec import trtexec_flags as flags
from precision_bisect.backends.trtexec import trtexec_results as results
from precision_bisect.errors import RunFolderError, UsageError, counted, printable, shortened
from precision_bisect.exports.export import Export, NotWritable
from precision_bisect.exports.trtexec import (
    KNOWS,
    READ_OPTIONS,
    build_flags,
    decomposing,
    since,
)
from precision_bisect.exports.write import save_mixed
from precision_bisect.graphs.batching import stacked
from precision_bisect.judging.judge_outputs import judge_outputs
from precision_bisect.machine.plain_files import plain_size, whole
from precision_bisect.pipeline.on_target.exchange import Manifest, Subject, typed_point
from precision_bisect.protocols import Comparator, Sample
from precision_bisect.runs import plain_json
from precision_bisect.runs.locking import RunLock
from precision_bisect.runs.results.on_target import ANSWER, FP32, OnTarget, PointOnTarget
from precision_bisect.runs.runfolder import MIXED_MODEL, TARGET, RunFolder, folder_errors
from precision_bisect.runs.typed_json import read_typed
from precision_bisect.trial import LayerHonour, Verdict

MANIFEST, SCRIPT, INPUTS = "points.json", "judge.sh", "inputs"
ENGINE, ENGINE_BYTES = "model.engine", "engine-bytes.txt"
BUILD_LOG, RUN_LOG = "build.log", "run-{}.log"
BATCH = "batch"
"""In place of a sample's number: what is timed at another batch."""
_NO_LOG = "no log says why"
_HEAD = f"""\
#!/bin/sh
# {{model}}: builds and runs {{count}} plans to judge, with trtexec of TensorRT 10 or 11.
#
#   sh {SCRIPT} [flags of trtexec]
#
# Written by precision-bisect. TRTEXEC=/path/to/trtexec says where the tool is. What is done is
# skipped, so this can be called again. Further flags go to every call of the tool, which is made
# in the folder of a plan: write paths in them from the root.
{{remarks}}set -u
case $0 in */*) here=${{{{0%/*}}}} ;; *) here=. ;; esac
tool=${{{{TRTEXEC:-trtexec}}}}
case $tool in
/*) ;;
*/*) tool=$PWD/$tool ;;
esac
command -v "$tool" > /dev/null 2>&1 || {{{{
    printf '%s\\n' 'no trtexec; say TRTEXEC=/path/to/trtexec' >&2
    exit 1
}}}}
{{options}}
if ! knows --stronglyTyped && knows --layerPrecisions; then
    printf '%s\\n' "$tool$version has no strong typing, and these plans need it: TensorRT 10" >&2
    exit 1
fi
CDPATH=''
cd -- "$here" || exit 1
failed=0

# step LOG FLAG FILE COMMAND...: with the flag the command writes FILE.part, which takes its name
# once it is whole.
step() {{{{
    log=$1 flag=$2 made=$3
    shift 3
    if [ -f "$made" ]; then return 0; fi
    printf '%s\\n' "$point/$made"
    if "$@" "$flag=$made.part" > "$log" 2>&1 < /dev/null && [ -f "$made.part" ] &&
        mv -f "$made.part" "$made"; then
        return 0
    fi
    failed=$((failed + 1))
    printf '%s\\n' "  failed, see $point/$log" >&2
    return 1
}}}}

"""
_LOOP = f"""\
for point in {{points}}; do
    cd -- "$point" || exit 1
    if {{build}}; then
        wc -c < {ENGINE} > {ENGINE_BYTES}
        {{runs}}
    fi
    cd ..
done

if [ "$failed" -gt 0 ]; then
    printf '%s\\n' "$failed failed, see the logs; call this again to try them once more" >&2
fi
printf '%s\\n' 'Copy this folder back, *.onnx and {ENGINE} may stay here, and call there' \\
    '  precision-bisect target RUN --read FOLDER'
[ "$failed" -eq 0 ]
"""


def write_script(subject: Subject) -> str:
    """Return the script. Raises NotWritable for shapes that cannot work."""
    export, model = subject.points[ANSWER], subject.model
    refuse_fixed_batch(model.inputs, subject.case.options.engine)
    remarks = [since(export)]
    if export.settings.plugins:
        remarks.append("The run had plugins: give --staticPlugins=LIB.so.")
    head = _HEAD.format(
        model=printable(model.path.name),
        count=len(subject.points),
        options=KNOWS + textwrap.dedent(f"    {READ_OPTIONS}"),
        remarks="".join(f"# {line}\n" for text in remarks for line in textwrap.wrap(text, 97)),
    )
    build = flags.build_call(MIXED_MODEL, build_flags(export, subject.called))
    runs = []
    for number, feed in _runs(subject).items():
        files = [f"../{input_file(number, place)}" for place in range(len(model.inputs))]
        call = flags.run_call(model, subject.called, ENGINE, feed, files, number)
        runs.append(
            _step(RUN_LOG.format(number), flags.EXPORT_OUTPUT, flags.OUTPUT.format(number), call)
        )
    loop = _LOOP.format(
        points=" ".join(subject.points),
        build=_step(BUILD_LOG, flags.SAVE_ENGINE, ENGINE, build),
        runs="\n        ".join(runs),
    )
    return head + decomposing(export).rstrip(" ") + loop


def _step(log: str, flag: str, made: str, call: Sequence[str]) -> str:
    return f'step {log} {flag} {made} "$tool" {shlex.join(call)} "$@"'


def _runs(subject: Subject) -> Mapping[int | str, Sample]:
    """Return the samples by number, and what is timed at another batch, if that is asked for.

    Raises CannotBatchError where the samples make no such batch.
    """
    runs: dict[int | str, Sample] = dict(enumerate(subject.inputs))
    batch = subject.time_batch
    return runs if batch is None else {**runs, BATCH: stacked(subject.inputs, batch)}


def input_file(sample: int | str, number: int) -> str:
    """Return where an input of a sample lies in the folder."""
    return f"{INPUTS}/{sample}-{number}.bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The folder, the points in it, and how many samples it has."""

    folder: Path
    points: Sequence[str]
    samples: int

    def to_text(self) -> str:
        """Return what it holds and what to do with it, in two lines."""
        holds = f"{counted(len(self.points), 'plan')} ({', '.join(self.points)})"
        return (
            printable(f"{self.folder}: {holds}, {counted(self.samples, 'sample')}")
            + f"\nCopy it to the target, call sh {SCRIPT} in it, copy it back, then --read it.\n"
        )

    def to_json(self) -> str:
        plain = {"folder": str(self.folder), "points": self.points, "samples": self.samples}
        return plain_json.dumps(plain, indent=2) + "\n"


def write_target(subject: Subject, where: Path) -> Written:
    """Write the folder of a run.

    Raises UsageError for a folder that holds something, and for a plan that no model can say, and
    RunFolderError where it cannot be written.
    """
    try:
        if any(where.iterdir()):
            raise UsageError(f"{where} is not empty", "name a new folder by --write")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RunFolderError(
            f"cannot look into {where}: {error.strerror}", "name another folder by --write"
        ) from error
    folder = RunFolder(where)
    try:
        script = write_script(subject)
        for name, export in subject.points.items():
            save_mixed(RunFolder(where / name), typed_point(subject, export))
    except NotWritable as why:
        raise UsageError(f"the folder cannot be written: {why}", "see --help of target") from why
    _write_inputs(subject, where)
    folder.write(SCRIPT, script)
    # Last, so that a folder that has it is complete.
    folder.write(MANIFEST, plain_json.dumps(subject.manifest, indent=2) + "\n")
    return Written(folder=where, points=tuple(subject.points), samples=len(subject.inputs))


def _write_inputs(subject: Subject, where: Path) -> None:
    """Write the arrays as trtexec loads them."""
    RunFolder(where / INPUTS)
    for sample, feed in _runs(subject).items():
        for number, spec in enumerate(subject.model.inputs):
            path = where / input_file(sample, number)
            with folder_errors(path), whole(path) as stream:
                stream.write(flags.raw(feed[spec.name]))


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
    if not any(point.samples or point.layers or point.engine_bytes for point in points):
        first = next((f"; {lack}" for point in points for lack in point.lacks), "")
        raise RunFolderError(
            f"nothing of the target is in {where}{first}",
            f"call sh {SCRIPT} in it on the target, and copy it back",
        )
    kept = (*subject.case.finished.fixed, *subject.case.finished.kept)
    facts = results.joined_facts(
        [results.read_facts(where / name / BUILD_LOG) for name in subject.points]
    )
    return OnTarget(samples=len(subject.inputs), kept=kept, points=points, versions=facts)


def record(on_target: OnTarget, run: Path) -> None:
    """Write what was found into the run folder. Raises RunFolderError."""
    with RunLock(run):
        RunFolder(run).write(TARGET, on_target.to_json())


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
        lacks.append(f"no engine: {results.trouble(folder / BUILD_LOG) or _NO_LOG}")
    model = subject.model
    outputs: list[Sample] = []
    wanted: list[Sample] = []
    for number, reference in enumerate(subject.outputs):
        path = folder / flags.OUTPUT.format(number)
        sample = _tried(lacks, results.read_outputs, path, model.outputs, subject.called)
        if sample is not None:
            outputs.append(sample)
            wanted.append(reference)
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
    typed = typed_point(subject, export)
    return judge_layers(export.model, export.plan, typed, layers, export.pair, rtx=False)
