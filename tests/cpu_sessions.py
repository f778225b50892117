"""A backend of plans as ONNX Runtime sessions on the CPU, in child processes as on a GPU.

There what is low is computed in FP32, so that nothing has to be kept. `install` makes it a plug-in
for processes whose path begins with a folder.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from precision_bisect.backends.backend_plugin import (
    Availability,
    BackendTask,
    Builder,
    MakeBackend,
)
from precision_bisect.backends.cuda.opening import Opener
from precision_bisect.errors import RefusedError
from precision_bisect.graphs.ort import CPU
from precision_bisect.graphs.typed.model_files import TypedFolder
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.precisions import LowName
from precision_bisect.protocols import Sample
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import Evidence, Latency


class SessionsBackend:
    """Opens typed graphs of the writer's model, in files below the folder `work`.

    Its versions tell how many bytes of weights it wrote there itself: `weights` has the others.
    """

    name: ClassVar[str] = "cpu-sessions"
    emulated: ClassVar[bool] = False

    def __init__(self, writer: TypedWriter, work: Path, weights: Path | None = None) -> None:
        self._writer = writer
        self._files = TypedFolder(work / "typed", from_root=True, shared=weights)
        self._opener = Opener(providers=[CPU], profiles=work / "profile", data=self._files.root)

    def versions(self) -> Mapping[str, str]:
        """Return how much it wrote; no result depends on that."""
        self.build(Plan.of(()))
        return {"written": str((self._files.path / "weights.bin").stat().st_size)}

    def unbuildable(self) -> Mapping[LayerName, str]:
        """Return nothing, once every layer was low in a session."""
        self.build(Plan.of(()))
        return {}

    def build(self, plan: Plan, *, afresh: bool = False) -> "CpuSession":
        """Return a session for the plan."""
        del afresh
        typed = self._writer.write(plan, guard_islands=False)
        with self._files.saved(typed) as file:
            return CpuSession(self._opener.open(file).session)


class CpuSession:
    """A session of one plan as an engine without a clock."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None

    def run(self, feed: Sample) -> Sample:
        """Return the outputs, by name."""
        names = [each.name for each in self._session.get_outputs()]
        return dict(zip(names, self._session.run(names, dict(feed)), strict=True))

    def time(self, feed: Sample) -> Latency | None:
        """Return nothing."""
        del feed
        return None

    def evidence(self) -> Evidence:
        """Return none."""
        return Evidence()

    def save(self, folder: Path) -> None:
        """Save nothing."""


class SessionsPlugin:
    """See `BackendPlugin`."""

    def availability(self) -> Availability:
        """Return that it works anywhere."""
        return Availability(name=SessionsBackend.name, usable=True, why="a CPU is there")

    def make(self, task: BackendTask) -> MakeBackend:
        """Return what makes the backend of a model."""
        return lambda model: SessionsBackend(task.writer(model), task.work, task.weights)

    def builder(self, settings: EngineSettings, low: LowName) -> Builder:
        """Refuse: these sessions show nothing."""
        raise RefusedError("nothing to look into", "name another backend")


PLUGIN = SessionsPlugin()


def install(site: Path) -> str:
    """Make it a plug-in in a new folder; return what PYTHONPATH begins with for it to be found."""
    info = site / "cpu_sessions-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cpu-sessions\nVersion: 1.0\n")
    entry = f"[precision_bisect.backends]\n{SessionsBackend.name} = cpu_sessions:PLUGIN\n"
    (info / "entry_points.txt").write_text(entry)
    return os.pathsep.join((str(site), str(Path(__file__).parent)))
