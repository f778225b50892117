"""Plans on hosts: whichever is free builds one, and the same one runs it, as long as it is there.

Inputs are sent once a host, weights once a connection; of a trial only its graph is sent.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from subprocess import TimeoutExpired
from tempfile import TemporaryDirectory
from typing import ClassVar, Self, TypeVar

import onnx

from precision_bisect.backends.backend_plugin import SampleShapes, failure
from precision_bisect.backends.inspection.engine_layers import EngineLayer
from precision_bisect.backends.inspection.honoured import judge_layers
from precision_bisect.backends.inspection.shown_tensors import (
    ShownTensor,
    as_shown,
    written_by_kernels,
)
from precision_bisect.backends.remote.ssh_host import (
    LOG,
    WEIGHTS_PART,
    BusyError,
    Host,
    LostConnectionError,
    TooLargeError,
)
from precision_bisect.backends.tensorrt.flavour import without_kernel
from precision_bisect.backends.timing import latency_of
from precision_bisect.backends.trtexec import trtexec_flags as flags
from precision_bisect.backends.trtexec import trtexec_results as results
from precision_bisect.errors import ExecutorError, RefusedError, UsageError
from precision_bisect.graphs.typed.model_files import TypedFolder
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.layer_table import LayerName
from precision_bisect.machine.process_ends import how_ended
from precision_bisect.plan import Plan
from precision_bisect.protocols import BackendFailure, Sample
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import Evidence, Latency, LayerHonour, TrialStatus

PAUSES_S = (1.0, 5.0, 15.0)
"""Seconds between attempts to reach any host. A bound: one that starts again may take longer, and
then the run is resumed."""
MOST_LOST = 3
"""So often a trial loses its connection before it counts as crashed: it may be to blame. A bound.
"""
_BUSY_S = 0.5
_SMALLEST = (
    '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x) => (float[1] y) { y = Relu(x) }'
)
_SMALLEST_S = 600.0
"""Seconds in which a host builds it, from the start of trtexec. A bound."""
_HINT = "`ssh HOST true` must work without a question: see that it is up, and to its keys"
_HINT_AT_WORK = "see to its network, disk and tools, or leave it out"

R = TypeVar("R")


class RemoteBackend:
    """Builds plans of the writer's model on hosts; `work` is a folder for files here.

    `shapes` are those of the samples, by input. Hosts must build alike unless they may be `mixed`.
    """

    name: ClassVar[str] = "remote"
    emulated: ClassVar[bool] = False

    def __init__(
        self,
        writer: TypedWriter,
        settings: EngineSettings,
        hosts: Sequence[Host],
        shapes: SampleShapes,
        samples: Sequence[Sample],
        work: Path,
        *,
        mixed: bool,
    ) -> None:
        self._writer = writer
        self.model = writer.model
        self._settings = settings
        self._hosts = list(hosts)
        self._mixed = mixed
        self.called = flags.plainly_called(self.model)
        ranges = flags.open_ranges(self.model, settings, shapes)
        self._common = tuple(flags.common_flags(settings, ranges, self.called))
        self._folder = TypedFolder(work / "typed")
        self.work = work
        self._numbers = count()
        self._choosing = threading.Lock()
        # Samples are sent once and stay; other feeds, as of copies, go after their run.
        self.lasting = {
            hashlib.sha256(flags.raw(array)).hexdigest()
            for feed in samples
            for array in self.model.interface.stored(feed).values()
        }

    def versions(self) -> Mapping[str, str]:
        """Return what trtexec says of itself and its GPU, on every host.

        Raises UsageError and RefusedError where a host cannot be used, or is unlike another.
        """
        by_host = {host.name: self._facts(host) for host in self._hosts}
        for fact in results.FACTS:
            values = {host: facts[fact] for host, facts in by_host.items()}
            if len({*values.values()}) > 1 and not self._mixed:
                unlike = ", ".join(f"{value} on {host}" for host, value in values.items())
                raise UsageError(
                    "the hosts are not alike, so their verdicts cannot be compared: "
                    f"{fact} is {unlike}",
                    "use hosts of one kind, or --mixed-gpus",
                )
        return results.joined_facts([*by_host.values()])

    def _facts(self, host: Host) -> Mapping[str, str]:
        """Build the smallest engine, which shows that a host can; return what its log tells."""
        model = onnx.parser.parse_model(_SMALLEST).SerializeToString()
        call = [*flags.build_call("../smallest.onnx", flags.STRONG), f"{flags.SAVE_ENGINE}=engine"]
        hint = _HINT
        try:
            host.open()
            hint = _HINT_AT_WORK
            with self.called_on(host, call, {"smallest.onnx": model}, _SMALLEST_S) as there:
                return results.read_facts(there / LOG)
        except LostConnectionError as error:
            raise RefusedError(f"host {error}", hint) from error
        except BackendFailure as failed:
            raise RefusedError(
                f"{host.reached.tool} on host {host.name} does not build the smallest engine: "
                f"{failed.outcome.message}",
                "TensorRT 10 or 11 must work there",
            ) from failed

    def unbuildable(self) -> Mapping[LayerName, str]:
        """Return the candidates without a low form."""
        low = self._writer.pair.low
        return {**self._writer.not_low, **without_kernel("tensorrt", self.model, low)}

    def build(self, plan: Plan, *, afresh: bool = False) -> "RemoteEngine":
        """Build the plan on a host that is free; trtexec never takes an old engine.

        Raises BackendFailure, and ExecutorError where no host can be reached or a disk is full.
        """
        del afresh
        typed = self._writer.write(plan, guard_islands=self._settings.guard_islands)
        flags.call_otherwise(typed.proto.graph, self.called)
        number = next(self._numbers)
        path = self._folder.save(typed, f"plan-{number}.onnx")

        def judge(layers: Sequence[EngineLayer]) -> Sequence[LayerHonour]:
            return judge_layers(self.model, plan, typed, layers, self._writer.pair, rtx=False)

        engine = RemoteEngine(self, path, judge)
        try:
            engine.built()
        # Also on Ctrl-C: a host keeps the engine's files until it is told.
        except BaseException:
            engine.__exit__()
            raise
        return engine

    def show(self, plan: Plan, feeds: Sequence[Sample]) -> Sequence[Sequence[ShownTensor]]:
        """See `ShowsTensors`: what trtexec 10.13 and later writes of unfused tensors."""
        typed = self._writer.write(plan, guard_islands=self._settings.guard_islands)
        flags.call_otherwise(typed.proto.graph, self.called)
        path = self._folder.save(typed, f"plan-{next(self._numbers)}.onnx")
        with RemoteEngine(self, path, lambda layers: (), (flags.MARK_UNFUSED,)) as engine:
            return [engine.shown(feed, typed.proto.graph) for feed in feeds]

    def build_on_a_free_host(
        self, path: Path, more: Sequence[str] = ()
    ) -> tuple[Host, Sequence[EngineLayer]]:
        """Build a graph, with `more` flags; return where, and the engine's layers, if told.

        Raises LostConnectionError where the connection was lost meanwhile, else as `build`.
        """
        pauses = iter(PAUSES_S)
        while True:
            why, busy = "", False
            for host in tuple(self._hosts):
                if not host.lock.acquire(blocking=False):
                    busy = True
                    continue
                try:
                    try:
                        host.open()
                    except LostConnectionError as error:
                        why = str(error)
                        continue
                    layers = self._built(host, path, more)
                    self._prefer(host)
                    return host, layers
                except BusyError:
                    busy = True
                finally:
                    host.lock.release()
            # Another process of this user is at work there and will end: that costs no attempt.
            if busy:
                time.sleep(_BUSY_S)
                continue
            pause = next(pauses, None)
            if pause is None:
                raise ExecutorError(f"no host can be reached: {why}", f"{_HINT}; then --resume")
            time.sleep(pause)

    def _built(self, host: Host, path: Path, more: Sequence[str]) -> Sequence[EngineLayer]:
        weights = self._folder.path / "weights.bin"
        size = weights.stat().st_size
        files: dict[str, bytes | Path] = {path.name: path}
        if size > host.weights:
            files[WEIGHTS_PART] = _part(weights, host.weights, size)
        call = flags.build_call(f"../{path.name}", (*flags.STRONG, *self._common, *more))
        save = f"{flags.SAVE_ENGINE}=../{path.stem}.engine"
        limit_s = self._settings.build_timeout_s
        with self.called_on(host, [*call, save], files, limit_s, patient=False) as there:
            try:
                return results.read_layers(there / flags.LAYER_INFO)
            except (OSError, ValueError):  # nothing shows what is honoured
                return ()

    @contextmanager
    def called_on(
        self,
        host: Host,
        call: Sequence[str],
        files: Mapping[str, bytes | Path],
        limit_s: float | None = None,
        *,
        patient: bool = True,
        failed: TrialStatus = TrialStatus.BUILD_FAILED,
    ) -> Iterator[Path]:
        """Yield the folder of what a call leaves; that it fails, or cannot be read, is an outcome.

        Raises BackendFailure, and what `Host.call` raises.
        """
        with TemporaryDirectory(dir=self.work) as folder:
            there = Path(folder)
            try:
                code = host.call(call, files, there, patient=patient, timeout_s=limit_s)
            except TimeoutExpired as error:
                message = f"its build took longer than {error.timeout:g} s, and was killed"
                raise failure(TrialStatus.TIMED_OUT, message) from error
            except TooLargeError as error:
                raise failure(failed, str(error)) from error
            if code:
                why = results.trouble(there / LOG) or "trtexec does not say why"
                why = f"its process {how_ended(code)}; {why}" if code < 0 else why
                raise failure(failed, why)
            try:
                yield there
            except FileNotFoundError as error:
                missing = Path(error.filename).name
                raise failure(failed, f"{missing} did not come back") from error
            except ValueError as error:
                raise failure(failed, str(error)) from error

    def _prefer(self, host: Host) -> None:
        """Ask this host first from now on: it is connected, and has the inputs."""
        with self._choosing:
            self._hosts.sort(key=lambda other: other is not host)


class RemoteEngine:
    """A plan that was built on a host; where that is lost, another one builds it again."""

    def __init__(
        self,
        backend: RemoteBackend,
        path: Path,
        judge: Callable[[Sequence[EngineLayer]], Sequence[LayerHonour]],
        more: Sequence[str] = (),
    ) -> None:
        self._backend = backend
        self._path = path
        self._judge = judge
        self._more = more
        self._host: Host | None = None
        self._connection = 0
        self._layers: Sequence[EngineLayer] = ()
        self._losses = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)
        if self._host is not None and self._host.connection == self._connection:
            self._host.stale += [self._path.name, f"{self._path.stem}.engine"]
        self._host = None

    def built(self) -> None:
        """Have it built, at once. Raises as `RemoteBackend.build` does."""
        self._on_host(lambda host: None)

    def run(self, feed: Sample) -> Sample:
        """Return the outputs, by name. Raises as `RemoteBackend.build` does."""
        model, called, file = self._backend.model, self._backend.called, flags.OUTPUT.format(0)
        flagged = (f"{flags.EXPORT_OUTPUT}={file}", *flags.ONCE)
        return self._ran(
            feed, lambda f: results.read_outputs(f / file, model.outputs, called), flagged
        )

    def time(self, feed: Sample) -> Latency | None:
        """Return trtexec's own figures of the GPU's time. Raises as `run` does."""
        times = self._ran(feed, lambda there: results.read_times(there / flags.TIMES.format(0)))
        return latency_of(times, "cuda_events")

    def shown(self, feed: Sample, graph: onnx.GraphProto) -> Sequence[ShownTensor]:
        """Return what the engine, built to show it, writes for one feed; `graph` is the typed one.

        Raises as `RemoteBackend.build` does.
        """
        # Built at first, so that its layers are known.
        self._on_host(lambda host: None)
        model, called, file = self._backend.model, self._backend.called, flags.OUTPUT.format(0)
        arrays, outputs = self._ran(
            feed,
            lambda there: (
                results.read_shown(there, self._layers),
                results.read_outputs(there / file, model.outputs, called),
            ),
            (f"{flags.EXPORT_OUTPUT}={file}", *flags.SHOW_ONCE),
        )
        own = {name: model_name for model_name, name in called.items()}
        return as_shown(arrays, written_by_kernels(self._layers, graph, own), outputs)

    def evidence(self) -> Evidence:
        """Return which kept layers were honoured."""
        return Evidence(honours=tuple(self._judge(self._layers)))

    def save(self, folder: Path) -> None:
        """Save nothing: the engine is for the host, where the typed model builds it again."""

    def _on_host(self, work: Callable[[Host], R]) -> R:
        """Return what `work` returns on the host that holds the engine."""
        while True:
            try:
                host = self._host
                if host is None or host.connection != self._connection:
                    host = self._built()
                with host.lock:
                    return work(host)
            except LostConnectionError as error:
                self._host = None
                self._losses += 1
                if self._losses == MOST_LOST:
                    message = f"lost: {error}, {MOST_LOST} times"
                    raise failure(TrialStatus.CRASHED, message) from error

    def _built(self) -> Host:
        host, self._layers = self._backend.build_on_a_free_host(self._path, self._more)
        self._host, self._connection = host, host.connection
        return host

    def _ran(self, feed: Sample, read: Callable[[Path], R], more: Sequence[str] = ()) -> R:
        """Return what is read of the files that a run leaves."""
        backend = self._backend
        feed = backend.model.interface.stored(feed)
        contents = [flags.raw(feed[spec.name]) for spec in backend.model.inputs]
        digests = [hashlib.sha256(content).hexdigest() for content in contents]
        names = [f"{'inputs' if d in backend.lasting else 'feed'}/{d}" for d in digests]
        paths, engine = [f"../{name}" for name in names], f"../{self._path.stem}.engine"
        call = [
            *flags.run_call(backend.model, backend.called, engine, feed, paths),
            *more,
        ]

        def run(host: Host) -> R:
            # A host that was reconnected to has a new folder, without this engine.
            if host.connection != self._connection:
                raise LostConnectionError(f"{host.name}: the connection is lost")
            files = {n: c for n, c in zip(names, contents, strict=True) if n not in host.sent}
            with backend.called_on(host, call, files, failed=TrialStatus.RUN_FAILED) as there:
                return read(there)

        return self._on_host(run)


def _part(path: Path, start: int, end: int) -> bytes:
    with path.open("rb") as stream:
        stream.seek(start)
        return stream.read(end - start)
