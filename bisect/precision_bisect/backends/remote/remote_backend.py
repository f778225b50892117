"""Plans on hosts: whichever is free builds one, and the same one runs it, as long as it is there.

Inputs are sent once a host, weights once a connection; of a trial only its graph is sent.
"""

import hashlib
import re
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from subprocess import TimeoutExpired
from tempfile import TemporaryDirectory
from typing import ClassVar, Self, TypeVar

import onnx

from precision_bisect.backends.backend_plugin import SampleShapes, failure
from precision_bisect.backends.inspection.engine_layers import EngineLayer, parse_json
from precision_bisect.backends.inspection.honoured import judge_layers
from precision_bisect.backends.remote.ssh_host import BusyError, Host, LostConnectionError
from precision_bisect.backends.tensorrt.flavour import without_kernel
from precision_bisect.backends.trtexec.trtexec_flags import (
    call_otherwise,
    common_flags,
    feed_flags,
    open_ranges,
    plainly_called,
    raw,
)
from precision_bisect.backends.trtexec.trtexec_results import (
    first_error,
    read_outputs,
    read_times,
)
from precision_bisect.errors import ExecutorError, RefusedError, UsageError, printable, shortened
from precision_bisect.graphs.typed.model_files import TypedFolder
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
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
_BUILD = ("--stronglyTyped", "--skipInference", "--profilingVerbosity=detailed")
_FACTS = {
    "trtexec": re.compile(r"\[TensorRT v(\d+)\]"),
    "device": re.compile(r"Selected Device: *(.+)"),
    "compute_capability": re.compile(r"Compute Capability: *(.+)"),
}
"""What trtexec's log tells that results depend on."""
_HINT = "`ssh HOST true` must work without a question: see to its key, and to its host key"

R = TypeVar("R")
Found = Mapping[str, bytes]


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
        self.called = plainly_called(self.model)
        ranges = open_ranges(self.model, settings, shapes)
        self._flags = (*_BUILD, *common_flags(settings, ranges, self.called))
        self._folder = TypedFolder(work / "typed")
        self.work = work
        self._numbers = count()
        self._choosing = threading.Lock()
        self.lasting = {
            _digest(raw(array))
            for feed in samples
            for array in self.model.interface.stored(feed).values()
        }

    def versions(self) -> Mapping[str, str]:
        """Return what trtexec says of itself and its GPU, on every host.

        Raises UsageError and RefusedError where a host cannot be used, or is unlike another.
        """
        answers = {host.name: _facts(host) for host in self._hosts}
        facts = {
            what: list(dict.fromkeys(answer[what] for answer in answers.values()))
            for what in _FACTS
        }
        for what, values in facts.items():
            if len(values) > 1 and not self._mixed:
                differences = ", ".join(
                    f"{answer[what]} on {host}" for host, answer in answers.items()
                )
                raise UsageError(
                    f"the hosts are not alike, so their verdicts cannot be compared: {what} is "
                    f"{differences}",
                    "use hosts of one kind, or --mixed-gpus",
                )
        return {what: " and ".join(sorted(values)) for what, values in facts.items()}

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
        call_otherwise(typed.proto.graph, self.called)
        number = next(self._numbers)
        path = self._folder.save(typed, f"plan-{number}.onnx")

        def judge(layers: Sequence[EngineLayer]) -> Sequence[LayerHonour]:
            return judge_layers(self.model, plan, typed, layers, self._writer.pair, rtx=False)

        engine = RemoteEngine(self, path, judge)
        try:
            engine.built()
        except BaseException:
            engine.__exit__()
            raise
        return engine

    def build_on_a_free_host(self, path: Path) -> tuple[Host, Found]:
        """Build a graph; return where, and what came back of it.

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
                    reply = self._built(host, path)
                    self._prefer(host)
                    return host, reply
                except BusyError:
                    busy = True
                finally:
                    host.lock.release()
            if busy:
                time.sleep(_BUSY_S)
                continue
            pause = next(pauses, None)
            if pause is None:
                raise ExecutorError(f"no host can be reached: {why}", f"{_HINT}; then --resume")
            time.sleep(pause)

    def _built(self, host: Host, path: Path) -> Found:
        weights = self._folder.path / "weights.bin"
        size = weights.stat().st_size
        files: dict[str, bytes | Path] = {path.name: path}
        if size > host.weights:
            files["weights.part"] = _part(weights, host.weights, size)
        flags = [*self._flags, f"--onnx={path.name}", f"--saveEngine={path.stem}.engine"]
        try:
            reply = host.call(
                [*flags, "--exportLayerInfo=out/layers.json"],
                files,
                patient=False,
                timeout_s=self._settings.build_timeout_s,
            )
        except TimeoutExpired as error:
            message = f"its build took longer than {error.timeout:g} s, and was killed"
            raise failure(TrialStatus.TIMED_OUT, message) from error
        host.weights = size
        return reply

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
    ) -> None:
        self._backend = backend
        self._path = path
        self._judge = judge
        self._host: Host | None = None
        self._connection = 0
        self._layers = b""
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
        model, called = self._backend.model, self._backend.called
        reply = self._on_host(lambda host: self._ran(host, feed))
        return self._read(reply, "output", lambda path: read_outputs(path, model.outputs, called))

    def time(self, feed: Sample) -> Latency | None:
        """Return trtexec's own figures of the GPU's time. Raises as `run` does."""
        times = self._read(self._on_host(lambda host: self._ran(host, feed)), "times", read_times)
        low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
        return Latency(
            median_ms=statistics.median(times),
            spread_ms=high - low,
            runs=len(times),
            method="cuda_events",
        )

    def evidence(self) -> Evidence:
        """Return which kept layers were honoured."""
        layers = parse_json(self._layers.decode("utf-8", errors="replace"))
        return Evidence(honours=tuple(self._judge(layers)))

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
        host, reply = self._backend.build_on_a_free_host(self._path)
        self._host, self._connection = host, host.connection
        if reply["status"].strip() != b"0":
            raise failure(TrialStatus.BUILD_FAILED, _trouble(reply, "trtexec did not build it"))
        self._layers = reply.get("layers.json", b"")
        return host

    def _ran(self, host: Host, feed: Sample) -> Found:
        if host.connection != self._connection:
            raise LostConnectionError(f"{host.name}: the connection is lost")
        names, files = [], dict[str, bytes | Path]()
        feed = self._backend.model.interface.stored(feed)
        for spec in self._backend.model.inputs:
            content = raw(feed[spec.name])
            digest = _digest(content)
            lasts = digest in self._backend.lasting
            names.append(f"{'inputs' if lasts else 'feed'}/{digest}")
            if digest not in host.sent:
                files[names[-1]] = content
        reply = host.call(
            [
                f"--loadEngine={self._path.stem}.engine",
                *feed_flags(self._backend.model, feed, names, self._backend.called),
                "--exportOutput=out/output.json",
                "--exportTimes=out/times.json",
            ],
            files,
            patient=True,
        )
        host.sent |= {name.partition("/")[2] for name in files if name.startswith("inputs/")}
        if reply["status"].strip() != b"0":
            raise failure(TrialStatus.RUN_FAILED, _trouble(reply, "trtexec did not run it"))
        return reply

    def _read(self, reply: Found, what: str, read: Callable[[Path], R]) -> R:
        with TemporaryDirectory(dir=self._backend.work) as folder:
            path = Path(folder) / f"{what}.json"
            path.write_bytes(reply.get(path.name, b""))
            try:
                return read(path)
            except ValueError as error:
                raise failure(TrialStatus.RUN_FAILED, str(error)) from error


def _facts(host: Host) -> Mapping[str, str]:
    """Build the smallest engine, which shows that a host can, and return what its log tells."""
    model = onnx.parser.parse_model(_SMALLEST)
    flags = [*_BUILD, "--onnx=smallest.onnx", "--saveEngine=out/engine"]
    try:
        host.open()
        reply = host.call(
            [*flags, "--exportLayerInfo=out/layers.json"],
            {"smallest.onnx": model.SerializeToString()},
            patient=True,
        )
    except LostConnectionError as error:
        raise RefusedError(f"host {error}", _HINT) from error
    if reply["status"].strip() != b"0":
        why = _trouble(reply, "it says nothing of why")
        raise RefusedError(
            f"{host.reached.tool} on host {host.name} does not build the smallest engine: {why}",
            "TensorRT 10 or 11 must work there",
        )
    log = reply["log"].decode("utf-8", errors="replace")
    matches = {what: pattern.search(log) for what, pattern in _FACTS.items()}
    return {what: match[1].strip() if match else "unknown" for what, match in matches.items()}


def _trouble(reply: Found, otherwise: str) -> str:
    log = reply.get("log", b"")
    last = log.decode("utf-8", errors="replace").strip().rpartition("\n")[2]
    return first_error(log) or shortened(printable(last)) or otherwise


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _part(path: Path, start: int, end: int) -> bytes:
    with path.open("rb") as stream:
        stream.seek(start)
        return stream.read(end - start)
