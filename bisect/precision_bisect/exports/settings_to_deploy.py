"""Whether what stays FP32 has TF32 where a plan is deployed: the one place that decides it."""

from dataclasses import replace

from precision_bisect.graphs.graph import all_graphs
from precision_bisect.graphs.load import Model
from precision_bisect.layer_table import LayerName, assigned
from precision_bisect.options import Options
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.targets import TF32_BY_DEFAULT

# Operators that some engine may multiply in TF32, more than were seen to be.
_MULTIPLYING = frozenset(
    (
        *("MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose", "DeformConv"),
        *("LSTM", "GRU", "RNN", "Attention"),
    )
)


def library_decides(options: Options, backend: str) -> bool:
    """Whether a backend judges without TF32 what libraries run with it unless told otherwise."""
    own = options.engine.ort_options.get("use_tf32")
    if options.engine.tf32 != "auto" or options.high != "fp32" or own == "0":
        return False
    return backend == "emulated" or (backend in TF32_BY_DEFAULT and own is None)


def settings_to_deploy(
    options: Options, backend: str, model: Model, pair: Pair, plan: Plan, *, held: bool
) -> EngineSettings:
    """Return the settings that a plan is deployed with.

    TF32 is on where the plan has `held` with it, and where the emulator has judged a plan that
    leaves no product FP32: its result is the same. On an engine it need not be. ONNX Runtime's
    `use_tf32=0` takes the tensor cores from FP16 convolutions, too, so their sums round otherwise.
    """
    unchanged = (
        backend == "emulated"
        and library_decides(options, backend)
        and not _multiplies_fp32(model, pair, plan)
    )
    return replace(options.engine, tf32="on") if held or unchanged else options.engine


def _multiplies_fp32(model: Model, pair: Pair, plan: Plan) -> bool:
    """Whether what a plan leaves FP32 may multiply; operators of others and in bodies may."""
    precisions = assigned(model.table, pair, plan)
    return any(
        precisions.get(LayerName(node.name), "fp32") == "fp32"
        and (node.op_type in _MULTIPLYING or node.domain not in ("", "ai.onnx"))
        for graph in all_graphs(model.proto.graph)
        for node in graph.node
    )
