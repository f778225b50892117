"""A built TensorRT engine: loaded only when it is run, timed or looked into."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import onnx

from precision_bisect.backends.backend_plugin import failure
from precision_bisect.backends.inspection.engine_layers import (
    EngineLayer,
    parse_json,
    parse_layers,
)
from precision_bisect.backends.inspection.shown_tensors import (
    ShownTensor,
    as_shown,
    written_by_kernels,
)
from precision_bisect.backends.tensorrt.build import BuiltEngine
from precision_bisect.backends.tensorrt.debug_tensors import DebugTensorError, emitted
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.layer_times import facts_of, information, layer_times
from precision_bisect.backends.tensorrt.log import collected, first_error
from precision_bisect.backends.timing import LaunchError, launches, measure_by
from precision_bisect.errors import RefusedError, printable
from precision_bisect.machine.plain_files import whole
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.verification import EngineFacts
from precision_bisect.runs.runfolder import ENGINE, TIMING_CACHE
from precision_bisect.trial import Evidence, Latency, LayerHonour, TrialStatus

Judge: TypeAlias = Callable[[Sequence[EngineLayer]], Sequence[LayerHonour]]
"""Tells from the layers of an engine which kept layers were honoured."""
_SEARCHED = "LD_LIBRARY_PATH"


class TensorRTEngine:
    """One plan as an engine, which is saved with the timing cache of its build, if it has one.

    `why_not` says why this machine cannot run it, "" if it can. It can be judged and saved in both
    cases.
    """

    def __init__(self, flavour: Flavour, built: BuiltEngine, why_not: str, judge: Judge) -> None:
        self._flavour = flavour
        self._built = built
        self._why_not = why_not
        self._judge = judge
        self._runner: Any = None
        self._held: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            # Deactivating frees everything except these buffers.
            for buffer in runner.output_allocator.buffers.values():
                buffer.free()
            runner.deactivate()

    def run(self, feed: Sample) -> Sample:
        """Return the outputs, by name, for one feed.

        Raises BackendFailure where the run fails, RefusedError where this machine cannot run it.
        """
        with self._running() as runner:
            outputs = runner.infer(_as_bound(runner, feed))
            # A copy, since the runner uses its buffers again.
            return {name: np.array(array) for name, array in outputs.items()}

    def time(self, feed: Sample) -> Latency:
        """Measure one inference from its launch to its end, inputs and outputs on the device.

        Raises BackendFailure where the run fails, RefusedError where this machine cannot run it.
        """
        with self._running() as runner, ExitStack() as stack:
            from polygraphy.cuda import DeviceArray

            # An input that gives a shape is read on the host.
            on_device = {
                name: array
                if runner.engine.is_shape_inference_io(name)
                else stack.enter_context(DeviceArray(array.shape, array.dtype)).copy_from(array)
                for name, array in _as_bound(runner, feed).items()
            }
            # This sets shapes and addresses, which stay for the launches below.
            # Outputs stay on the device: copying them would be timed as well.
            outputs = runner.infer(on_device, check_inputs=False, copy_outputs_to_host=False)
            _fix_outputs(runner, outputs)
            timer = stack.enter_context(launches(runner.stream))

            def launch() -> None:
                if not runner.context.execute_async_v3(timer.stream):
                    raise LaunchError("TensorRT did not launch the engine")

            return measure_by(lambda: timer.seconds(launch), timer.method)

    def layer_times(self, feed: Sample) -> tuple[Mapping[str, float], Sequence[EngineLayer]]:
        """Return the milliseconds of each of the engine's layers by its name, and these layers.

        Raises BackendFailure where the run fails, RefusedError where this machine cannot run it.
        """
        with self._running() as runner:
            bound = _as_bound(runner, feed)
            took = layer_times(self._flavour.module, runner, bound, self._held)
        return took, self._layers()

    def shown(self, feed: Sample, graph: onnx.GraphProto) -> Sequence[ShownTensor]:
        """Return what the engine, built to show it, emits for one feed; `graph` is the typed one.

        Raises BackendFailure where the run fails, RefusedError where this machine cannot run it.
        """
        with self._running() as runner:
            arrays, outputs = emitted(self._flavour.module, runner, _as_bound(runner, feed))
        return as_shown(arrays, written_by_kernels(self._layers(), graph), outputs)

    def evidence(self) -> Evidence:
        """Return which kept layers were honoured, and the builder's remarks.

        Raises BackendFailure where the engine cannot be loaded.
        """
        remarks = self._built.remarks
        return Evidence(
            honours=tuple(self._judge(self._layers())), notes=remarks.notes, listed=remarks.listed
        )

    def facts(self) -> EngineFacts | None:
        """Return what its layers add up to; None where they are not told.

        Raises BackendFailure where the engine cannot be loaded.
        """
        return facts_of(len(self._built.engine), self._layers())

    def description(self) -> str:
        """Return the library's own words on the engine's layers, "" where it has none.

        Raises BackendFailure where the engine cannot be loaded.
        """
        if self._why_not:
            return self._built.layers
        with self._running() as runner:
            return information(self._flavour.module, runner.engine, runner.context, self._held)

    def save(self, folder: Path) -> None:
        """Write the engine and the timing cache: complete under their names, or the old ones stay.

        Raises OSError.
        """
        with whole(folder / ENGINE) as stream:
            stream.write(self._built.engine)
        if self._built.timings:
            with whole(folder / TIMING_CACHE) as stream:
                stream.write(self._built.timings)

    def _layers(self) -> Sequence[EngineLayer]:
        """Return the engine's layers: from the inspector, which says most, else from the builder.

        The builder's text is for machines that cannot load the engine, and for inspectors that
        name no nodes.
        """
        layers = () if self._why_not else parse_json(self.description())
        if any(layer.nodes for layer in layers):
            return layers
        return parse_layers(self._built.layers) or layers

    @contextmanager
    def _running(self) -> Iterator[Any]:
        """Yield the active runner; what fails in the block is an outcome of the trial."""
        if self._why_not:
            raise RefusedError(
                f"the engine cannot run here: {self._why_not}",
                "`precision-bisect doctor` says what can",
            )
        with collected(self._flavour) as messages:
            from polygraphy.exception import PolygraphyException

            try:
                if self._runner is None:
                    self._runner = _activated(self._built.engine)
                yield self._runner
            except (PolygraphyException, LaunchError, DebugTensorError) as error:
                text = " ".join((first_error(messages) or str(error)).split())
                raise failure(TrialStatus.RUN_FAILED, printable(text)) from error


def _activated(engine: bytes) -> Any:
    """Return a runner that holds the engine on the device."""
    from polygraphy.backend.trt import EngineFromBytes, TrtRunner

    load_cuda_runtime()
    runner = TrtRunner(EngineFromBytes(engine))
    runner.activate()
    return runner


def _fix_outputs(runner: Any, outputs: Mapping[str, Any]) -> None:
    """Give outputs whose shape is known an address in place of Polygraphy's allocator.

    TensorRT calls an allocator in every launch, and this one is Python, so it would add host time
    to the latency. The next inference by Polygraphy sets its allocator again.
    """
    for name, view in outputs.items():
        if -1 not in tuple(runner.context.get_tensor_shape(name)):
            runner.context.set_output_allocator(name, None)
            runner.context.set_tensor_address(name, view.ptr)


def _as_bound(runner: Any, feed: Sample) -> Sample:
    """Return the feed in the types that the engine takes: TensorRT narrows int64 and float64."""
    from polygraphy.datatype import DataType

    return {
        name: np.asarray(feed[name], dtype=DataType.to_dtype(dtype, "numpy"), order="C")
        for name, (dtype, _) in runner.get_input_metadata(use_numpy_dtypes=False).items()
    }


def load_cuda_runtime() -> None:
    """Make Polygraphy load the library, for the rest of the process.

    Polygraphy looks into the search path and into pip's packages for CUDA 12; those for CUDA 13
    are laid out differently. Raises RefusedError where there is none.
    """
    from polygraphy import cuda

    before = os.environ.get(_SEARCHED)
    folders = [before] if before else []
    folders += [str(f) for entry in sys.path for f in Path(entry).glob("nvidia/cu[0-9]*/lib")]
    os.environ[_SEARCHED] = os.pathsep.join(folders)
    try:
        cuda.wrapper()
    except OSError as error:
        raise RefusedError(
            f"Polygraphy cannot load CUDA's runtime library: {error}",
            f"put the folder of libcudart.so on {_SEARCHED}",
        ) from error
    finally:
        # Processes started from here must not search what this one needed once.
        del os.environ[_SEARCHED]
        if before is not None:
            os.environ[_SEARCHED] = before
