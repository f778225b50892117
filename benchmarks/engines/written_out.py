"""Which operators engines take only in pieces: the table `settings/written_out.json`.

    cd benchmarks; python -m engines.written_out

Every operator that ONNX defines by a function is tried in ONNX's own cases, in FP32, at each opset
of its newest form: whether ONNX Runtime opens it, whether TensorRT-RTX has an importer of it, and
whether both take the pieces. Those that ONNX Runtime has a kernel of stay whole.
"""

import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import onnx
import onnxruntime

from engines import onnxruntime_cpu, pages, rtx_steps
from engines.operator_models import LAST, cases_by_operator
from operator_cases import STANDARD
from precision_bisect.graphs.graph import has_function
from precision_bisect.graphs.load import in_pieces

TABLE = Path(__file__).parents[2] / "bisect/precision_bisect/settings/written_out.json"
IR = 10


def opens(model: onnx.ModelProto) -> bool:
    """Tell whether ONNX Runtime opens a model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), options)
    except Exception:  # it has no common base for what it raises
        return False
    return True


def parses(model: onnx.ModelProto) -> bool:
    """Tell whether TensorRT-RTX parses a model, or has an importer that wants it otherwise."""
    answer = rtx_steps.parse(model)
    return not isinstance(answer, str) or not rtx_steps.lacks_importer(answer)


def at_opsets(operator: str) -> Iterator[tuple[int, onnx.ModelProto]]:
    """Yield an operator's cases at each opset that its newest form is of."""
    first = onnx.defs.get_schema(operator).since_version
    for _, case, _ in cases_by_operator().get(operator, []):
        for version in range(first, LAST + 1):
            model = onnx.ModelProto.FromString(case.SerializeToString())
            model.ir_version, model.opset_import[0].version = IR, version
            yield version, model


def first_in_pieces(operator: str, functions: dict[str, int]) -> int:
    """Return the first opset from which on an operator is taken in pieces alone, 0 for none."""
    helped, others = set[int](), set[int]()
    for version, model in at_opsets(operator):
        pieces = in_pieces(model, functions)
        lacks = not (opens(model) and parses(model))
        (helped if lacks and opens(pieces) and parses(pieces) else others).add(version)
    return min(helped - others, default=0)


def kernel(operator: str) -> bool:
    """Tell whether ONNX Runtime has a kernel of an operator in FP32."""
    table = pages.read(onnxruntime_cpu.NAME)
    types = table["operators"].get(operator, {}).get("types", {})
    return bool(types.get(f"FP32 {table['versions']['onnxruntime (newest)']}") == "kernel")


def operators() -> dict[str, int]:
    """Return the operators that are written out, with the first opset."""
    newest = onnx.defs.onnx_opset_version()
    functions = (name for name in sorted(STANDARD) if has_function(name, newest))
    tried = [name for name in functions if not kernel(name)]
    table = dict[str, int]()
    # Twice, as functions may call others that are written out.
    for operator in (*tried, *tried):
        first = first_in_pieces(operator, table | {operator: 0})
        if first:
            table[operator] = first
    return dict(sorted(table.items()))


if __name__ == "__main__":
    found = {
        "tensorrt_rtx": metadata.version("tensorrt_rtx"),
        "onnxruntime": onnxruntime.__version__,
        "onnx": onnx.__version__,
        "operators": operators(),
    }
    TABLE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(found)
