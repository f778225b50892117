"""A backend in one file: plans run on onnx's own reference evaluator, which computes real FP16.

`pip install ./examples/reference_backend` makes it `--backend onnx-reference`. It is slow: every
operator is plain numpy.
"""

from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import ClassVar, Self

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from precision_bisect.backends.backend_plugin import (
    Availability,
    BackendTask,
    Builder,
    MakeBackend,
)
from precision_bisect.errors import RefusedError
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.precisions import LowName
from precision_bisect.protocols import BackendFailure, Sample
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import Evidence, Latency, Outcome, TrialStatus

NAME = "onnx-reference"


class ReferenceEngine:
    """One plan: its strongly typed graph in an evaluator."""

    def __init__(self, path: Path) -> None:
        self._evaluator = ReferenceEvaluator(str(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, feed: Sample) -> Sample:
        """Return the outputs, by name. Raises BackendFailure."""
        try:
            with np.errstate(all="ignore"):
                values = self._evaluator.run(None, dict(feed))
        except Exception as error:  # an operator's code raises what numpy does
            raise BackendFailure(
                Outcome(status=TrialStatus.RUN_FAILED, message=str(error))
            ) from error
        return dict(zip(self._evaluator.output_names, values, strict=True))

    def time(self, feed: Sample) -> Latency | None:
        """Return None: numpy's speed says nothing of an engine's."""
        return None

    def evidence(self) -> Evidence:
        """Return nothing: every layer computes in the types of its graph."""
        return Evidence()

    def save(self, folder: Path) -> None:
        """Save nothing: the typed graph is all there is."""


class ReferenceBackend:
    """Builds plans of the writer's model; `work` is a folder for its files."""

    name: ClassVar[str] = NAME
    emulated: ClassVar[bool] = False

    def __init__(self, writer: TypedWriter, work: Path) -> None:
        self._writer = writer
        self._work = work

    def versions(self) -> Mapping[str, str]:
        """Return what results depend on; another version does not resume the run."""
        return {"onnx": onnx.__version__, "numpy": np.__version__}

    def unbuildable(self) -> Mapping[LayerName, str]:
        """Return the candidates without a low form."""
        return self._writer.not_low

    def build(self, plan: Plan, *, afresh: bool = False) -> ReferenceEngine:
        """Write the plan's graph and load it. Raises BackendFailure."""
        del afresh
        # Several threads may build at a time.
        path = Path(mkdtemp(dir=self._work)) / "plan.onnx"
        save_typed(self._writer.write(plan), path)
        try:
            return ReferenceEngine(path)
        except Exception as error:  # an operator without an implementation, say
            raise BackendFailure(
                Outcome(status=TrialStatus.BUILD_FAILED, message=str(error))
            ) from error


class ReferencePlugin:
    """What the entry point names."""

    def availability(self) -> Availability:
        """Return that it works."""
        return Availability(name=NAME, usable=True, why="numpy computes FP16 on any machine")

    def make(self, task: BackendTask) -> MakeBackend:
        """Return what makes the backend of a model. Raises RefusedError."""
        if task.options.low != "fp16":
            raise RefusedError(f"{NAME} computes FP16 alone", "leave out --low")
        return lambda model: ReferenceBackend(task.writer(model), task.work)

    def builder(self, settings: EngineSettings, low: LowName) -> Builder:
        """Return how `verify` builds."""
        return Builder(name=NAME, settings=settings)


PLUGIN = ReferencePlugin()
