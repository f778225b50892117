"""A backend for tests: the emulator's outputs, and the kernels of real sessions on the CPU.

The CPU provider computes 16-bit graphs in FP32, so nothing that it returns is judged. Its times
are real ones. `install` makes it a plug-in in this process and in its children.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from precision_bisect.backends.backend_plugin import Availability, BackendTask, MakeBackend
from precision_bisect.backends.cuda.building import TypedSessions
from precision_bisect.backends.cuda.cuda_backend import times_of
from precision_bisect.backends.cuda.opening import Opener
from precision_bisect.backends.emulation.emulator_plugin import EMULATOR
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.ort import CPU
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.protocols import Backend, BackendFailure, Engine, Sample
from precision_bisect.search.speed.kernel_times import KernelTimes
from precision_bisect.trial import Outcome, TrialStatus
from simulated import Unversioned

GELU = """(float[2,8] x) => (float[2,8] y) <float r = {1.41421356}, float one = {1},
  float half = {0.5}> {
  [div] d = Div(x, r)
  [erf] e = Erf(d)
  [add] a = Add(e, one)
  [mul] m = Mul(x, a)
  [out] h = Mul(m, half)
  [act] y = Sigmoid(h) }"""
"""Five layers that ONNX Runtime fuses into one, called Gelu, and one that it leaves alone."""
NAME = "cpu-sessions"


class AnywhereSessions(TypedSessions):
    """Sessions whose low layers may lie on the CPU."""

    def _on_cpu(self, *_: Any) -> list[LayerName]:
        return []


class CpuTimes:
    """Times the kernels of plans of a writer's model on the CPU; `folder` is for its files."""

    def __init__(self, writer: TypedWriter, folder: Path) -> None:
        self._writer = writer
        self._opener = Opener(providers=[CPU], profiles=folder / "profile")
        self._sessions = AnywhereSessions(writer, self._opener, folder / "typed")

    def kernel_times(self, plan: Plan, feed: Sample) -> KernelTimes:
        """Return the times of a plan."""
        return times_of(self._sessions, self._writer, plan, self._opener, feed, "cpu")


class CpuSessions(Unversioned, CpuTimes):
    """See the module; the rest is as in `Backend`."""

    name: ClassVar[str] = NAME

    def __init__(self, writer: TypedWriter, folder: Path, emulator: Backend) -> None:
        super().__init__(writer, folder)
        self._emulator = emulator

    def build(self, plan: Plan, *, afresh: bool = False) -> Engine:
        """Return the emulator's engine."""
        return self._emulator.build(plan, afresh=afresh)


class Refusing(CpuSessions):
    """Has no profile."""

    def kernel_times(self, plan: Plan, feed: Sample) -> KernelTimes:
        """Raise BackendFailure."""
        message = "no profile today"
        raise BackendFailure(Outcome(status=TrialStatus.RUN_FAILED, message=message))


class Raising(CpuSessions):
    """Has a mistake."""

    def kernel_times(self, plan: Plan, feed: Sample) -> KernelTimes:
        """Raise an error that no backend should raise."""
        raise ZeroDivisionError("division by zero")


class Dying(CpuSessions):
    """Has a bad driver."""

    def kernel_times(self, plan: Plan, feed: Sample) -> KernelTimes:
        """End the process."""
        os.kill(os.getpid(), signal.SIGSEGV)
        raise AssertionError("the signal ends it")


class Hanging(CpuSessions):
    """Has a worse one."""

    def kernel_times(self, plan: Plan, feed: Sample) -> KernelTimes:
        """Never return."""
        while True:
            time.sleep(1.0)


class CpuSessionsPlugin:
    """See `BackendPlugin`; it makes backends of a `kind`, which tell no `times` if so asked."""

    def __init__(self, kind: type[CpuSessions] = CpuSessions, *, times: bool = True) -> None:
        self._kind = kind
        self._times = times

    def availability(self) -> Availability:
        """Return that it works."""
        return Availability(name=NAME, usable=True, why="times anywhere")

    def make(self, task: BackendTask) -> MakeBackend:
        """Return what makes the backend of a model."""
        emulator = EMULATOR.make(task)

        def made(model: Model) -> Backend:
            made = self._kind(task.writer(model), task.work, emulator(model))
            return made if self._times else Untimed(made)

        return made


class Untimed:
    """A backend of others that does not know of kernels."""

    name: ClassVar[str] = NAME
    emulated: ClassVar[bool] = False

    def __init__(self, backend: Backend) -> None:
        self.versions = backend.versions
        self.unbuildable = backend.unbuildable
        self.build = backend.build


CPU_SESSIONS = CpuSessionsPlugin()
REFUSING = CpuSessionsPlugin(Refusing)
RAISING = CpuSessionsPlugin(Raising)
DYING = CpuSessionsPlugin(Dying)
HANGING = CpuSessionsPlugin(Hanging)
SILENT = CpuSessionsPlugin(times=False)


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, plugin: str = "CPU_SESSIONS") -> None:
    """Let this process and its children find a plug-in of this module; `folder` is empty."""
    info = folder / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[precision_bisect.backends]\n{NAME} = kernel_sessions:{plugin}\n"
    )
    tests = Path(__file__).parent
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{tests}", prepend=":")
