"""ONNX Runtime on CUDA as a backend."""

from precision_bisect.backends.backend_plugin import (
    Availability,
    BackendTask,
    Builder,
    MakeBackend,
)
from precision_bisect.backends.cuda.provider import why_no_cuda
from precision_bisect.errors import RefusedError
from precision_bisect.precisions import LowName
from precision_bisect.settings.engine_settings import EngineSettings


class CudaPlugin:
    """See `BackendPlugin`."""

    def availability(self) -> Availability:
        """Return whether ONNX Runtime computes FP16 on a GPU here."""
        trouble = why_no_cuda()
        return Availability(
            name="onnxruntime", usable=trouble is None, why=trouble or "CUDA computes FP16"
        )

    def make(self, task: BackendTask) -> MakeBackend:
        """Return what makes the backend of a model."""
        # Imported here: naming the plug-in must load no library.
        from precision_bisect.backends.cuda.cuda_backend import CudaBackend

        return lambda model: CudaBackend(
            task.writer(model),
            task.options.engine,
            task.work,
            timed=task.timed,
            weights=task.weights,
        )

    def builder(self, settings: EngineSettings, low: LowName) -> Builder:
        """Return how sessions to look into are opened."""
        del low
        if trouble := why_no_cuda():
            raise RefusedError(
                f"--backend onnxruntime cannot build here: {trouble}",
                "`precision-bisect doctor` says what can",
            )
        return Builder(name="onnxruntime", settings=settings)


CUDA_PLUGIN = CudaPlugin()
