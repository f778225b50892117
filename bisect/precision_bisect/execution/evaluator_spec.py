"""What an evaluator in another process is made of.

A spec is pickled and sent; the model, which may have gigabytes, is read from its file instead.
"""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from precision_bisect.errors import ModelError, RefusedError
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.judging.inputs.copies import Refers, copies_for
from precision_bisect.judging.inputs.loops import PLAIN, Loop
from precision_bisect.layer_table import LayerName, LayerTable
from precision_bisect.machine.plain_files import ROOM, written
from precision_bisect.options import Options
from precision_bisect.plan import Plan
from precision_bisect.protocols import Backend, BackendFailure, Comparator, Hasty
from precision_bisect.search.evaluation import Evaluator
from precision_bisect.search.sample_sets import SampleSets
from precision_bisect.search.speed.kernel_times import KernelTimes, TimesKernels
from precision_bisect.search.stopwatch import Stopwatch
from precision_bisect.trial import SampleSet

if TYPE_CHECKING:
    from precision_bisect.graphs.load import Model


class Made(NamedTuple):
    """A model, and the backend that builds its plans."""

    model: "Model"
    backend: Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a backend says of itself; see `protocols.Described` and `protocols.Hasty`.

    A backend cannot be pickled: it holds sessions and GPU memory.
    """

    name: str
    emulated: bool
    said: Mapping[str, str]
    stuck: Mapping[LayerName, str]
    hasty: bool = False

    def versions(self) -> Mapping[str, str]:
        """Return versions and device names that results depend on."""
        return self.said

    def unbuildable(self) -> Mapping[LayerName, str]:
        """Return the candidates that cannot run low, each with the reason."""
        return self.stuck


def survey(backend: Backend) -> Survey:
    """Return what the backend says of itself."""
    return Survey(
        name=backend.name,
        emulated=backend.emulated,
        said=backend.versions(),
        stuck=backend.unbuildable(),
        hasty=isinstance(backend, Hasty) and backend.hasty,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorSpec:
    """Makes the evaluator of a run, in any process that can read the model's file.

    It can be pickled. `options` name the backend, never "auto". `digest` is that of the model.
    `table` has its layers, with those pinned that cannot run low. With `forecasts` the emulator
    evaluates, on the process's first GPU. The rest is as in `Evaluator`, `baseline` as in
    `Stopwatch`, `timed` and `weights` as in `BackendTask`, `optimised` and `loop` as in `Case`.
    """

    options: Options
    digest: str
    table: LayerTable
    comparator: Comparator
    samples: SampleSets
    scales: Scales
    keep: Path
    engines: Path | None = None
    baseline: Plan | None = None
    timed: bool = False
    forecasts: bool = False
    optimised: bool = True
    loop: Loop = PLAIN
    weights: Path | None = None

    def save(self, path: Path) -> None:
        """Write the spec, pickled, for other processes. Raises RunFolderError."""
        with written(str(path), ROOM):
            path.write_bytes(pickle.dumps(self, protocol=pickle.HIGHEST_PROTOCOL))

    def evaluator(self, work: Path, looked: Made | None = None) -> Evaluator:
        """Return the evaluator, which uses the folder `work` for its files.

        `looked` was made in this process for the same run, before it was known which layers cannot
        run low. Raises as `made` does.
        """
        model, backend = self.made(work) if looked is None else self._rebuilt(looked, work)
        refer = self._refer(model, backend)
        samples = replace(self.samples, refer=refer)
        return Evaluator(
            backend=backend,
            emulator=backend,
            comparator=self.comparator,
            samples=samples,
            keep=self.keep,
            loop=self.loop,
            engines=self.engines,
            stopwatch=Stopwatch(
                partial(backend.build, afresh=True), self.baseline, self.options.engine.time_batch
            ),
            copies=copies_for(
                self.options,
                samples,
                refer,
                emulated=backend.emulated,
                layers=len(self.table.candidates),
            ),
        )

    def _refer(self, model: "Model", backend: Backend) -> Refers:
        """Return what computes the FP32 outputs of copies: the GPU where ONNX Runtime has one."""
        # Imported here: it brings in ONNX Runtime.
        from precision_bisect.backends.cuda.gpu_reference import GpuReference
        from precision_bisect.graphs.fp32_outputs import ReferenceSession

        on_cpu = ReferenceSession(
            model, self.options.threads, optimised=self.optimised, how=self.loop
        )
        if backend.name != "onnxruntime":
            return on_cpu
        feeds, reference = self.samples[SampleSet.JUDGED]
        return GpuReference(model, on_cpu, (feeds[0], reference[0]), self.comparator)

    def made(self, work: Path) -> Made:
        """Return the model and the backend, which uses the empty folder `work` for its files.

        Raises ModelError where the model's file has changed, and what the backend does.
        """
        model = self._model()
        return Made(model, self._backend(model, work))

    def _rebuilt(self, looked: Made, work: Path) -> Made:
        """Return the same with this table; its backend serves as long as no layer was pinned."""
        if looked.model.table == self.table:
            return looked
        model = replace(looked.model, table=self.table)
        return Made(model, self._backend(model, work))

    def kernel_times(
        self, plans: Sequence[Plan], looked: Made | None, work: Path
    ) -> Sequence[KernelTimes]:
        """Return how long the kernels of plans take with the first sample; see `evaluator`.

        Raises RefusedError where the backend does not tell that, or cannot build a plan.
        """
        model_and_backend = self.made(work) if looked is None else self._rebuilt(looked, work)
        backend, feed = model_and_backend.backend, self.samples.feeds[0]
        if not isinstance(backend, TimesKernels):
            why, hint = f"{backend.name} does not time its kernels", "profile it by its own tools"
            raise RefusedError(why, hint)
        try:
            return [backend.kernel_times(plan, feed) for plan in plans]
        except BackendFailure as failed:
            hint = "verify builds the answer by itself"
            raise RefusedError(failed.outcome.message, hint) from failed

    def _model(self) -> "Model":
        # Imported here: ONNX is of no use to a process that only sends a spec.
        from precision_bisect.graphs.load import load_model
        from precision_bisect.graphs.ort import use_custom_ops

        use_custom_ops(self.options.engine.ort_custom_ops)
        model = load_model(self.options.model).with_io_types(self.options.engine.io_types)
        if model.digest != self.digest:
            raise ModelError(
                f"{self.options.model} has changed since the run began",
                "put the old file back and go on with --resume, or start anew with another --out",
            )
        # Plans are numbers of candidates: all processes must number by the same table.
        return replace(model, table=self.table)

    def _backend(self, model: "Model", work: Path) -> Backend:
        # Imported here: ONNX Runtime is of no use to a process that only sends a spec.
        from precision_bisect.backends.backend_plugin import choose_backend
        from precision_bisect.backends.emulation.emulator_plugin import forecaster

        if self.forecasts:
            return forecaster(model, self.options, self.scales, on_gpu=True)
        chosen = choose_backend(
            self.options,
            self.samples.feeds,
            work,
            scales=self.scales,
            timed=self.timed,
            steps=self.samples.steps,
            weights=self.weights,
        )
        return chosen.make(model)
