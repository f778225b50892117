"""What a backend is to the tool: an entry point that says whether it works here, and makes it.

To add one, write a `BackendPlugin` and name it in the entry points of the group
`precision_bisect.backends`; `docs/backends.md` has an example in one file.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from precision_bisect.graphs.load import Model
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.shape_inputs import shape_inputs
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.options import Options
from precision_bisect.precisions import LowName, Pair
from precision_bisect.protocols import Backend, Sample
from precision_bisect.settings.engine_settings import EngineSettings

MakeBackend: TypeAlias = Callable[[Model], Backend]
SampleShapes: TypeAlias = Mapping[str, Sequence[tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a library during a build; `severity` is its own word."""

    severity: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Whether a backend can run plans on this machine, and why or why not, in one sentence.

    `builds` tells whether it can at least build engines, which `verify` needs.
    """

    name: str
    usable: bool
    why: str
    builds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTask:
    """What a backend is made for.

    `samples` are all feeds of the run, by input name; of a finished run only their `shapes` are
    known. `work` is an empty folder for files. `scales` are those of everything that some plan
    quantizes. `timed` tells that latencies decide: then every plan is built as it is deployed.
    """

    options: Options
    samples: Sequence[Sample] = ()
    shapes: SampleShapes | None = None
    work: Path
    scales: Scales
    timed: bool = False

    def shapes_for(self, model: Model) -> SampleShapes:
        """Return the shapes of the samples, by input of the model."""
        return sample_shapes(model, self.samples) if self.shapes is None else self.shapes

    def writer(self, model: Model) -> TypedWriter:
        """Return what writes plans of the model as strongly typed graphs."""
        pair = Pair(low=self.options.low, high=self.options.high)
        return TypedWriter(model, pair, self.scales)


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """How a backend builds engines to look into, without running them; `remark` is for people.

    `settings` are those to build with. Inside the context `listening` the library's messages
    appear in a list, if it has any.
    """

    name: str
    remark: str = ""
    settings: EngineSettings
    listening: Callable[[], AbstractContextManager[Sequence[Message]]] = lambda: nullcontext(())


class BackendPlugin(Protocol):
    """One kind of engines, under the name of its entry point."""

    def availability(self) -> Availability:
        """Return whether it works here; never raises for what is missing or broken."""
        ...

    def make(self, task: BackendTask) -> MakeBackend:
        """Return a function that makes the backend of a model; a child process can repeat it.

        It is called where `availability` says usable, or after `builder`. Raises PluginError or
        RefusedError.
        """
        ...

    def builder(self, settings: EngineSettings, low: LowName) -> Builder:
        """Return how `verify` builds by `make`. Raises PluginError or RefusedError."""
        ...


def sample_shapes(model: Model, samples: Sequence[Sample]) -> SampleShapes:
    """Return the shapes that each input takes over all samples, each once.

    For an input that gives a shape by its values, these values stand in, as in a profile of
    TensorRT.
    """
    values = shape_inputs(model.proto.graph, model.inputs)
    shapes: dict[str, dict[tuple[int, ...], None]] = {}
    for sample in samples:
        for name, array in sample.items():
            shape = tuple(map(int, array.flat)) if name in values else array.shape
            shapes.setdefault(name, {})[shape] = None
    return {name: list(found) for name, found in shapes.items()}
