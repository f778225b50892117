"""The FP32 outputs of copies on the GPU, where they are those of the CPU."""

import threading

from precision_bisect.backends.cuda.provider import deployed_provider, on_cuda, searching
from precision_bisect.errors import PrecisionBisectError
from precision_bisect.graphs.fp32_outputs import ReferenceSession
from precision_bisect.graphs.load import Model
from precision_bisect.protocols import Comparator, Sample
from precision_bisect.trial import Verdict

GPU_DIFFERENCE = 0.05
"""Share of the tolerance by which FP32 on the GPU, without TF32, may differ from the CPU on the
first sample. By more, the CPU computes. So verdicts change only for errors within
5% of the tolerance."""


class GpuReference:
    """See `ReferenceSession`: the first of several that passes its check and has enough memory.

    These are one on the GPU with the options that are deployed, which runs fastest, one with those
    that plan fast, which takes an eighth of the memory where kernels are large, and `on_cpu`.
    Those on the GPU compute `known_sample` first, and the `comparator` judges it by the
    outputs that the CPU gave.
    """

    def __init__(
        self,
        model: Model,
        on_cpu: ReferenceSession,
        known_sample: tuple[Sample, Sample],
        comparator: Comparator,
    ) -> None:
        gpu = (
            ReferenceSession(
                model, optimised=on_cpu.optimised, providers=on_cuda(options), how=on_cpu.how
            )
            for options in (deployed_provider(), searching())
        )
        self._how = on_cpu.how
        self._left = [*gpu, on_cpu]
        self._known = known_sample
        self._comparator = comparator
        self._choosing = threading.Lock()
        self._checked = on_cpu

    def __call__(self, feed: Sample) -> Sample:
        """Return the outputs to judge, by name. Raises as `ReferenceSession` does."""
        return self._how(self.step, feed)

    def step(self, feed: Sample) -> Sample:
        """Return the outputs of one inference, by name. Raises the same."""
        while True:
            session = self._chosen()
            try:
                return session.step(feed)
            except (PrecisionBisectError, RuntimeError):
                # The GPU has no room beside what was built since.
                if session is self._left[-1]:
                    raise
                self._drop(session)

    def rest(self) -> None:
        """Give the sessions' memory back; the next call opens one again."""
        for session in self._left:
            session.rest()

    def _chosen(self) -> ReferenceSession:
        with self._choosing:
            while self._left[0] not in (self._checked, self._left[-1]):
                if self._agrees(self._left[0]):
                    self._checked = self._left[0]
                else:
                    self._drop(self._left[0])
            return self._left[0]

    def _drop(self, session: ReferenceSession) -> None:
        session.rest()
        # Of several threads that failed together the first drops it.
        self._left = [other for other in self._left if other is not session]

    def _agrees(self, session: ReferenceSession) -> bool:
        feed, expected = self._known
        tolerance = self._comparator.tolerance
        try:
            judgement = self._comparator.judge([session(feed)], [expected])
        except (PrecisionBisectError, RuntimeError):
            # The GPU may have no room, or no kernel.
            return False
        if tolerance is None or judgement.error is None:
            return judgement.verdict is Verdict.PASS
        return judgement.error <= GPU_DIFFERENCE * tolerance
