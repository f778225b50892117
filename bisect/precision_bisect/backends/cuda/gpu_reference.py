"""The FP32 outputs of copies on the GPU, where they are those of the CPU."""

import threading

from precision_bisect.backends.cuda.provider import lasting, on_cuda
from precision_bisect.errors import PrecisionBisectError
from precision_bisect.inputs.reference import ReferenceSession
from precision_bisect.machine.stopping import Stopped
from precision_bisect.model.load import Model
from precision_bisect.protocols import Comparator, Sample
from precision_bisect.trial import Verdict

GPU_DIFFERENCE = 0.05
"""Share of the tolerance by which FP32 on the GPU, without TF32, may differ from the CPU on the
first sample. By more, the CPU computes. A bound of taste."""


class GpuReference:
    """See `ReferenceSession`: one on the GPU if it passes its check, else the one on the CPU.

    The first call computes the sample `known` on the GPU, and has the `comparator` judge it by the
    outputs that the CPU gave.
    """

    def __init__(
        self,
        model: Model,
        on_cpu: ReferenceSession,
        known: tuple[Sample, Sample],
        comparator: Comparator,
    ) -> None:
        gpu = on_cuda(lasting())
        self._gpu = ReferenceSession(model, optimised=on_cpu.optimised, providers=gpu)
        self._cpu = on_cpu
        self._known = known
        self._comparator = comparator
        self._checking = threading.Lock()
        self._chosen: ReferenceSession | None = None

    def __call__(self, feed: Sample) -> Sample:
        """Return the outputs, by name. Raises as `ReferenceSession` does."""
        with self._checking:
            if self._chosen is None:
                self._chosen = self._gpu if self._agrees() else self._cpu
                if self._chosen is self._cpu:
                    self._gpu.rest()
        try:
            return self._chosen(feed)
        except Stopped:
            raise
        except (PrecisionBisectError, RuntimeError):
            if self._chosen is self._cpu:
                raise
            # The GPU has no room beside what was built since.
            self._gpu.rest()
            self._chosen = self._cpu
            return self._cpu(feed)

    def rest(self) -> None:
        """Give the sessions' memory back; the next call opens one again."""
        self._gpu.rest()
        self._cpu.rest()

    def _agrees(self) -> bool:
        feed, expected = self._known
        tolerance = self._comparator.tolerance
        try:
            found = self._comparator.judge([self._gpu(feed)], [expected])
        except Stopped:
            raise
        except (PrecisionBisectError, RuntimeError):
            # The GPU may have no room, or no kernel.
            return False
        if tolerance is None or found.error is None:
            return found.verdict is Verdict.PASS
        return found.error <= GPU_DIFFERENCE * tolerance
