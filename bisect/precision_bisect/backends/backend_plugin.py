"""What a backend is to the tool, and which one is taken: the one asked for, or the most real one.

It is an entry point that says whether it works here, and makes it. To add one, write a
`BackendPlugin` and name it in the entry points of the group `precision_bisect.backends`;
`docs/backends.md` has an example in one file.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, cast

from precision_bisect.errors import PluginError, RefusedError, UsageError
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.typed.rewrite import TypedWriter, writer_of
from precision_bisect.graphs.types import shape_inputs
from precision_bisect.machine.gpu import OUT_OF_MEMORY, full
from precision_bisect.options import Options
from precision_bisect.plugins import BACKENDS, installed, load
from precision_bisect.precisions import LowName, Pair
from precision_bisect.protocols import Backend, BackendFailure, Sample
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import Outcome, TrialStatus

MakeBackend: TypeAlias = Callable[[Model], Backend]
SampleShapes: TypeAlias = Mapping[str, Sequence[tuple[int, ...]]]
AUTO = ("tensorrt", "tensorrt-rtx", "onnxruntime", "emulated")
"""The backends that `auto` tries, in this order; any other has to be named."""
_LIBRARIES = ("tensorrt", "tensorrt-rtx")
NO_SCALES = Scales()


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
    known. In a loop engines take feeds of `steps`, too. `work` is an empty folder for files.
    `scales` are those of everything that some plan quantizes, if anything. `timed` tells that
    latencies decide: then every plan is built as it is deployed. In the folder `weights` the
    processes of a run on this machine may share files of weights, None for none.
    """

    options: Options
    samples: Sequence[Sample] = ()
    steps: Sequence[Sample] = ()
    shapes: SampleShapes | None = None
    work: Path
    scales: Scales = NO_SCALES
    timed: bool = False
    weights: Path | None = None

    def shapes_for(self, model: Model) -> SampleShapes:
        """Return the shapes of the samples, by input of the model."""
        if self.shapes is not None:
            return self.shapes
        return sample_shapes(model, [*self.samples, *self.steps])

    def writer(self, model: Model) -> TypedWriter:
        """Return what writes plans of the model as strongly typed graphs."""
        pair = Pair(low=self.options.low, high=self.options.high)
        return writer_of(model, pair, self.scales)


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
    """One kind of engines, under the name of its entry point.

    Where it has `options`, a sequence of texts, these are its keys of `backend_options`.
    """

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


def failure(status: TrialStatus, message: str) -> BackendFailure:
    """Return the outcome of an unfinished trial, to be raised; want of memory is called so."""
    starved = full(message)
    message = f"{OUT_OF_MEMORY * starved}{message}"
    return BackendFailure(Outcome(status=status, message=message, retry=starved))


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
    return {name: list(input_shapes) for name, input_shapes in shapes.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A backend that was chosen, how to make it for a model, and why it is the one."""

    name: str
    make: MakeBackend
    why: str


def availabilities() -> list[Availability]:
    """Return every backend in the order in which `auto` takes them, then the others.

    A TensorRT library counts as usable only where this machine's GPU can run its engines.
    """
    others = [name for name in installed(BACKENDS) if name not in AUTO]
    return [_availability(name) for name in (*AUTO, *others)]


def choose_backend(
    options: Options,
    samples: Sequence[Sample],
    work: Path,
    *,
    scales: Scales = NO_SCALES,
    timed: bool = False,
    steps: Sequence[Sample] = (),
    weights: Path | None = None,
) -> Chosen:
    """Return the backend that the options ask for; `work` is an empty folder for its files.

    What has a default is as in `BackendTask`. Raises as `pick_backend` does.
    """
    name, why = pick_backend(options)
    task = BackendTask(
        options=options,
        samples=samples,
        steps=steps,
        work=work,
        scales=scales,
        timed=timed,
        weights=weights,
    )
    return Chosen(name=name, make=backend_plugin(name).make(task), why=why)


def pick_backend(options: Options) -> tuple[str, str]:
    """Return the name of the backend that the options ask for, and why it is the one.

    With a target, `auto` takes that one's own backend or the emulator. Raises PluginError
    for an unknown name, and RefusedError when it was asked for by name and cannot run here, with
    the reason.
    """
    _check_backend_options(options)
    if options.backend == "auto":
        suited = [name for name in AUTO if options.target in ("auto", name) or name == AUTO[-1]]
        entries = [_availability(name) for name in suited]
        # The emulator is last and always usable.
        choice = next(entry for entry in entries if entry.usable)
        passed_over = entries[: entries.index(choice)]
        return choice.name, "; ".join(f"{entry.name}: {entry.why}" for entry in passed_over)
    named = backend_plugin(options.backend).availability()
    if not named.usable:
        raise RefusedError(
            f"--backend {named.name} cannot run plans here: {named.why}",
            "`precision-bisect doctor` says what can"
            + ("; `verify` builds without running" if named.builds else ""),
        )
    return named.name, ""


def _check_backend_options(options: Options) -> None:
    """Raise UsageError for an option that the backend does not have."""
    backend_options = options.engine.backend_options
    if not backend_options:
        return
    plugin = None if options.backend == "auto" else backend_plugin(options.backend)
    keys: Sequence[str] = getattr(plugin, "options", ())
    for key in backend_options:
        if key not in keys:
            hint = f"choose {', '.join(keys)}" if keys else "leave it out, or name its --backend"
            raise UsageError(f"--backend {options.backend} has no option {key!r}", hint)


def choose_builder(name: str, settings: EngineSettings, low: LowName = "fp16") -> Builder:
    """Return how engines with `low` are built here; `auto` takes the first TensorRT that can.

    Raises PluginError where it is not installed, RefusedError where ONNX Runtime has no GPU.
    """
    if name != "auto":
        return backend_plugin(name).builder(settings, low)
    # Sorting is stable: of two that can build, or cannot, the first named comes first.
    for library in sorted(_LIBRARIES, key=lambda library: not _availability(library).builds):
        try:
            return backend_plugin(library).builder(settings, low)
        except PluginError:
            continue
    raise PluginError(
        "neither TensorRT nor TensorRT-RTX is installed, so no engine can be built",
        "pip install tensorrt_rtx, which builds without a GPU, too",
    )


def backend_plugin(name: str) -> BackendPlugin:
    """Return a backend's plug-in. Raises PluginError."""
    return cast("BackendPlugin", load(BACKENDS, name))


def _availability(name: str) -> Availability:
    try:
        return backend_plugin(name).availability()
    except PluginError as error:
        return Availability(name=name, usable=False, why=error.one_line())
