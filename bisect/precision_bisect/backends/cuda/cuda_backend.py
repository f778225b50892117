"""Real FP16 and BF16 kernels: typed graphs on ONNX Runtime's CUDA provider.

ONNX Runtime always adds its CPU provider for nodes that CUDA does not take, and computes 16-bit
operators there in FP32. So layers that land there are found before a search (`unbuildable`). A
plan with a low layer that still lands there has no verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from precision_bisect.backends.cuda.building import TypedSessions
from precision_bisect.backends.cuda.cuda_engine import SessionEngine
from precision_bisect.backends.cuda.node_times import times_of
from precision_bisect.backends.cuda.opening import Opener
from precision_bisect.backends.cuda.provider import (
    deployed_provider,
    on_cuda,
    require_cuda,
    searching,
)
from precision_bisect.backends.cuda.session_tensors import shown_by_session
from precision_bisect.backends.inspection.shown_tensors import ShownTensor
from precision_bisect.graphs.ort import runtime
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.layer_table import LayerName
from precision_bisect.machine.gpu import cuda_version, devices, driver_version
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.search.speed.kernel_times import KernelTimes
from precision_bisect.settings.engine_settings import EngineSettings

_FATAL = 4
"""ONNX Runtime's severity that logs only fatal errors."""


class CudaBackend:
    """Builds plans of the writer's model as ONNX Runtime sessions on the first GPU of CUDA.

    `workdir` is a folder for its files. Of the settings it obeys `tf32`, `ort_options` and
    `build_timeout_s`; the others are TensorRT's. Plans are opened with the options that plan fast,
    and with the deployed ones where they are built afresh, or always where latencies decide
    (`timed`). Raises PluginError or RefusedError where ONNX Runtime cannot compute FP16 on a GPU
    here.
    """

    name: ClassVar[str] = "onnxruntime"
    emulated: ClassVar[bool] = False

    def __init__(
        self, writer: TypedWriter, settings: EngineSettings, workdir: Path, *, timed: bool = False
    ) -> None:
        require_cuda()
        # cuDNN's refusals of single algorithms would fill the terminal, though another one is
        # taken.
        runtime().set_default_logger_severity(_FATAL)
        self._deployed = deployed_provider(tf32=settings.in_tf32, own=settings.ort_options)
        fast = searching(tf32=settings.in_tf32, own=settings.ort_options)
        self._searching = self._deployed if timed else fast
        opener = Opener(
            providers=on_cuda(self._searching),
            profiles=workdir / "profile",
            timeout_s=settings.build_timeout_s,
            capturing=timed,
        )
        self._as_deployed = replace(opener, providers=on_cuda(self._deployed), capturing=True)
        self._writer = writer
        self._sessions = TypedSessions(writer, opener, workdir / "typed")

    @property
    def hasty(self) -> bool:
        """Whether plans that are not built afresh have other options than the deployed."""
        return self._searching != self._deployed

    def versions(self) -> Mapping[str, str]:
        """Return the versions of ONNX Runtime and the driver, the GPU, and what options differ."""
        gpu = devices()[0]
        return {
            "onnxruntime": runtime().__version__,
            "provider": "CUDA",
            "device": f"{gpu.name} (compute capability {gpu.compute_capability})",
            "driver": driver_version() or "unknown",
            "cuda": cuda_version() or "unknown",
            "tf32": "off" if self._deployed["use_tf32"] == "0" else "on",
            "convolutions": self._deployed["cudnn_conv_algo_search"].lower(),
            "convolutions_searching": self._searching["cudnn_conv_algo_search"].lower(),
        }

    def unbuildable(self) -> Mapping[LayerName, str]:
        """Return the candidates that cannot run low on CUDA, each with the reason."""
        return self._sessions.unbuildable()

    def build(self, plan: Plan, *, afresh: bool = False) -> SessionEngine:
        """Open a session for the plan; `afresh` as it is deployed. Raises BackendFailure."""
        opener = self._as_deployed if afresh else None
        return SessionEngine(self._sessions.open(plan, opener), "cuda")

    def show(self, plan: Plan, feeds: Sequence[Sample]) -> Sequence[Sequence[ShownTensor]]:
        """See `ShowsTensors`: what is not fused, where showing it leaves the fusions as they are.

        It is opened as it is deployed.
        """
        # A low layer on the CPU is refused first.
        session = self._sessions.open(plan, self._as_deployed).session
        Path(session.end_profiling()).unlink()
        del session
        typed = self._writer.write(plan, guard_islands=False, seal=True)
        return shown_by_session(self._sessions.files, typed, self._as_deployed, feeds)

    def kernel_times(self, plan: Plan, feed: Sample) -> KernelTimes:
        """See `TimesKernels`; the environment of the process has to hold `provider.ONE_BY_ONE`."""
        return times_of(self._sessions, self._writer, plan, self._as_deployed, feed, "cuda")
