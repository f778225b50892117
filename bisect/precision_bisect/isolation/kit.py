"""What an evaluator in another process is made of."""

import pickle
from dataclasses import dataclass, replace
from pathlib import Path

from precision_bisect.errors import ModelError, RunFolderError
from precision_bisect.evaluation import Evaluator, Samples
from precision_bisect.layer_table import LayerTable
from precision_bisect.options import Options
from precision_bisect.plan import Plan
from precision_bisect.protocols import Backend, Comparator
from precision_bisect.quantization.scales import Scales
from precision_bisect.speed.stopwatch import Stopwatch
from precision_bisect.trial import SampleSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """Makes the evaluator of a run, in any process that can read the model's file.

    Can be pickled. `options` name the backend, not "auto"; `digest` is that of the model, `table`
    its layers with those pinned that cannot run low. With `forecasts` the emulator evaluates, on
    the process's first GPU. The rest is as in `Evaluator`, and `baseline` as in `Stopwatch`.
    """

    options: Options
    digest: str
    table: LayerTable
    comparator: Comparator
    samples: Samples
    scales: Scales
    keep: Path
    engines: Path | None = None
    baseline: Plan | None = None
    forecasts: bool = False

    def save(self, path: Path) -> None:
        """Write the kit, pickled, for other processes. Raises RunFolderError."""
        try:
            path.write_bytes(pickle.dumps(self, protocol=pickle.HIGHEST_PROTOCOL))
        except OSError as error:
            raise RunFolderError(
                f"cannot write {path}: {error.strerror}",
                "point TMPDIR to a writable folder with free space",
            ) from error

    def evaluator(self, work: Path) -> Evaluator:
        """Return the evaluator, which uses the empty folder `work` for its files.

        Raises ModelError where the model's file has changed, and what the backend does.
        """
        backend = self.backend(work)
        return Evaluator(
            backend=backend,
            emulator=backend,
            comparator=self.comparator,
            samples=self.samples,
            keep=self.keep,
            engines=self.engines,
            stopwatch=Stopwatch(backend.build, self.baseline),
        )

    def backend(self, work: Path) -> Backend:
        """Return the backend; see `evaluator`."""
        # These bring in ONNX and ONNX Runtime, which a process that only sends a kit may not need.
        from precision_bisect.backends.choose import choose_backend
        from precision_bisect.backends.forecasting import forecaster
        from precision_bisect.model.load import load_model

        model = load_model(self.options.model)
        if model.digest != self.digest:
            raise ModelError(
                f"{self.options.model} has changed since the run began",
                "put the old file back and go on with --resume, or start anew with another --out",
            )
        model = replace(model, table=self.table)
        if self.forecasts:
            return forecaster(model, self.options, self.scales, on_gpu=True)
        feeds, _ = self.samples[SampleSet.ALL]
        return choose_backend(self.options, feeds, work, scales=self.scales).make(model)
