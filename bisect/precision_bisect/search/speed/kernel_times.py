"""How long each kernel of an engine takes, and which nodes of the graph it computes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.layer_costs import ProfileMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedKernel:
    """One kernel of an engine, with its milliseconds in an inference.

    `nodes` are those of the graph that was built which it computes, Casts of ours among them; a
    conversion that the engine has added stands with the kept layers beside it.
    """

    ms: float
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """The kernels of one engine."""

    method: ProfileMethod
    kernels: Sequence[TimedKernel]

    @property
    def total_ms(self) -> float:
        """What all kernels take together."""
        return sum(kernel.ms for kernel in self.kernels)


@runtime_checkable
class TimesKernels(Protocol):
    """A backend whose engines tell how long each of their kernels takes."""

    def kernel_times(self, plan: Plan, feed: Sample) -> KernelTimes:
        """Return the times of a plan, built as it is deployed. Raises BackendFailure."""
        ...
