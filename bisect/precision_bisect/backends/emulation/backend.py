"""The emulated backend: predicts any plan on any machine, one inference a trial.

It computes in FP32 and rounds what is stored to the low type, layer by layer, as tensor cores do
with FP32 accumulation inside an operator. One session serves every plan (see `switched`). What it
says is a prediction; the target has the last word.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import onnx
from onnx import helper

from precision_bisect.backends.emulation.switched import FLAGS, switch
from precision_bisect.errors import ModelError, RefusedError
from precision_bisect.evidence import Evidence, Latency
from precision_bisect.layer_table import LayerName
from precision_bisect.lowtypes import LOW_TYPES, LowType
from precision_bisect.model.convert import at_least_opset, hint_to_export
from precision_bisect.model.load import Model
from precision_bisect.options import LowName
from precision_bisect.ort import Session, runtime
from precision_bisect.plan import Plan
from precision_bisect.protocols import BackendFailure, Sample
from precision_bisect.trial import Outcome, TrialStatus


class EmulatedBackend:
    """Evaluates plans of one model by switched round trips to the low type.

    Raises RefusedError when this ONNX Runtime does not keep explicit round trips (the self-test
    at start), ModelError when it cannot load the model.
    """

    name: ClassVar[str] = "emulated"
    emulated: ClassVar[bool] = True

    def __init__(self, model: Model, low: LowName = "fp16", threads: int = 0) -> None:
        low_type = LOW_TYPES[low]
        self_test(low_type)
        self._candidates = len(model.table.candidates)
        usable = at_least_opset(model, low_type.lowest_opset)
        try:
            self._graph = switch(usable, low_type)
            self._session = Session(self._graph.proto, self._graph.weights, threads)
        except ModelError as error:
            if usable is model:
                raise
            raise ModelError(
                f"{low_type.name} needs opset {low_type.lowest_opset}, and the model does not "
                f"survive the conversion: {error.message}",
                hint_to_export(low_type.lowest_opset),
            ) from error

    def versions(self) -> Mapping[str, str]:
        """Return the version of ONNX Runtime and its provider."""
        return {"onnxruntime": runtime().__version__, "provider": "CPU"}

    def unbuildable(self) -> Mapping[LayerName, str]:
        """Return no layers: any operator can be rounded."""
        return {}

    def build(self, plan: Plan) -> "EmulatedEngine":
        """Return the plan as an engine; nothing is built."""
        return EmulatedEngine(self, plan)

    def evaluate(self, plan: Plan, feed: Sample) -> Sample:
        """Return the outputs, by name, of `plan` for one feed. Raises BackendFailure."""
        low = np.ones(self._candidates, np.bool_)
        low[list(plan.kept)] = False
        try:
            return self._session.run({**feed, FLAGS: self._graph.flags(low)})
        except RuntimeError as error:
            raise BackendFailure(
                Outcome(status=TrialStatus.RUN_FAILED, message=str(error))
            ) from error


class EmulatedEngine:
    """One plan on the session that serves all of them."""

    def __init__(self, backend: EmulatedBackend, plan: Plan) -> None:
        self._backend = backend
        self._plan = plan

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Free nothing: the session belongs to the backend."""

    def run(self, feed: Sample) -> Sample:
        """Return the predicted outputs, by name. Raises BackendFailure."""
        return self._backend.evaluate(self._plan, feed)

    def time(self, feed: Sample) -> Latency | None:
        """Return None: how long a prediction takes says nothing of an engine."""
        del feed
        return None

    def evidence(self) -> Evidence:
        """Return no evidence: nothing was built."""
        return Evidence()

    def save(self, folder: Path) -> None:
        """Save nothing: there is no engine."""


def self_test(low: LowType) -> None:
    """Check that round trips survive ONNX Runtime's optimizer and round to nearest even.

    Raises RefusedError otherwise: every verdict would rest on FP32 results.
    """
    probe = np.array([300.0 * 300.0, 3.0e38, 1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11, 1e-7], np.float32)
    probe = np.concatenate([probe, np.float32(2.0) ** np.arange(-140, 20, dtype=np.float32)])
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [len(probe)])
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [len(probe)])
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["low"], to=low.onnx_type),
            helper.make_node("Cast", ["low"], ["y"], to=onnx.TensorProto.FLOAT),
        ],
        "self-test",
        [value],
        [out],
    )
    opset = max(13, low.lowest_opset)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    try:
        got = Session(proto, {}, threads=1).run({"x": probe})["y"]
    except (ModelError, RuntimeError) as error:
        raise RefusedError(
            f"ONNX Runtime {runtime().__version__} cannot round to {low.name}: {error}",
            "install another version of onnxruntime",
        ) from error
    if not np.array_equal(got, low.round(probe)):
        raise RefusedError(
            f"ONNX Runtime {runtime().__version__} does not keep a round trip to {low.name}",
            "its verdicts would rest on FP32 results; install another version of onnxruntime",
        )
