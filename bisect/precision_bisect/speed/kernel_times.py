"""How long each kernel of an engine takes, and which layers it computes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.results.layer_costs import ProfileMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedKernel:
    """One kernel of an engine: what it takes in an inference, and the candidates it computes.

    A kernel of no candidate may change the type of a value: it `casts`, or it `quantizes` or
    dequantizes for the low layers that read it. Or it only `moves` values. `reads` and `writes`
    are tensors, by the engine's names; empty where it does not tell.
    """

    ms: float
    layers: frozenset[LayerName] = frozenset()
    casts: bool = False
    quantizes: bool = False
    moves: bool = False
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelTimes:
    """The kernels of one engine."""

    method: ProfileMethod
    kernels: Sequence[TimedKernel]

    @property
    def total_ms(self) -> float:
        """What all kernels take together."""
        return sum(kernel.ms for kernel in self.kernels)

    def around(self, kernel: TimedKernel) -> frozenset[LayerName]:
        """Return the candidates whose values a kernel converts, and those that read the result.

        Between them are only kernels that move or quantize values.
        """
        above = self._next(kernel.reads, self._writers, up=True)
        return frozenset((*above, *self.below(kernel)))

    def below(self, kernel: TimedKernel) -> frozenset[LayerName]:
        """Return the candidates that read what a kernel writes."""
        return frozenset(self._next(kernel.writes, self._readers, up=False))

    def _next(
        self, tensors: Sequence[str], ends: Mapping[str, Sequence[TimedKernel]], *, up: bool
    ) -> Iterator[LayerName]:
        waiting, seen = list(tensors), set(tensors)
        while waiting:
            for kernel in ends.get(waiting.pop(), ()):
                yield from kernel.layers
                if not kernel.layers and (kernel.moves or kernel.quantizes):
                    further = set(kernel.reads if up else kernel.writes) - seen
                    seen |= further
                    waiting += further

    @cached_property
    def _writers(self) -> Mapping[str, Sequence[TimedKernel]]:
        return _by_tensor((name, each) for each in self.kernels for name in each.writes)

    @cached_property
    def _readers(self) -> Mapping[str, Sequence[TimedKernel]]:
        return _by_tensor((name, each) for each in self.kernels for name in each.reads)


@runtime_checkable
class TimesKernels(Protocol):
    """A backend whose engines tell how long each of their kernels takes."""

    def kernel_times(self, plan: Plan, feed: Sample) -> KernelTimes:
        """Return the times of a plan, built as it is deployed. Raises BackendFailure."""
        ...


def _by_tensor(ends: Iterator[tuple[str, TimedKernel]]) -> Mapping[str, Sequence[TimedKernel]]:
    found: dict[str, list[TimedKernel]] = {}
    for name, kernel in ends:
        found.setdefault(name, []).append(kernel)
    return found
