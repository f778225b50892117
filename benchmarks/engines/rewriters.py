"""What rewriters of ONNX files make of this tool's mixed files: docs/engines/rewriters.md.

    cd benchmarks; python -m engines.rewriters

Each operator is kept in FP32 between low ones, and the file goes through each rewriter. It keeps
its precision where the operator still reads FP32, and a guard if it had one; its meaning where
ONNX Runtime on a CPU, without optimisation, gives the same outputs.
"""

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from engines import pages, rtx_conditions
from engines.children import Children
from engines.converters import models, pinned, run_tools, verdict
from engines.tool_runs import TOOLS

NAME = "rewriters"
REWRITERS = tuple(TOOLS["rewriters"])


def mixed(model: onnx.ModelProto, folder: str) -> str:
    """Write the model with the operator kept; return the path, or "" where there is none."""
    form = rtx_conditions.Form(place="between", kept=True)
    return str(rtx_conditions.typed_file(model, form, Path(folder), pins=False)[0] or "")


def write_models(folder: Path) -> None:
    """Write the mixed files of all operators."""
    children = Children(60)
    for name, model, arrays in models():
        if name.startswith("probe-"):
            continue
        with tempfile.TemporaryDirectory() as place:
            made = Path(children.call(mixed, model, place))
            if made.is_absolute():
                onnx.save(onnx.load(made), folder / f"{name}.onnx")
                np.savez(folder / f"{name}.npz", **dict[str, Any](arrays))


def precision(operator: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return what a rewriter did to an operator that is kept in FP32, and to its guard."""
    old, new = (Counter(map(tuple, each["nodes"])) for each in (before, after))
    there = {kind for name, kind in new if name == operator}
    if not there:
        return "gone"
    if "FLOAT" not in there and (operator, "FLOAT") in old:
        return "in FP16"
    guards = old["Max", "FLOAT"] - new["Max", "FLOAT"]
    return "guard gone" if guards > 0 and operator != "Max" else "kept"


def data() -> dict[str, Any]:
    """Return the whole table."""
    operators: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as place:
        write_models(Path(place))
        rows = run_tools("rewriters", Path(place))
    for name, row, before in rows:
        operator = name.partition("-")[0]
        for tool in REWRITERS:
            after = row[tool]
            said = verdict(after, before)
            if said == "equal":
                said = precision(operator, before, after)
            entry = operators.setdefault(operator, {})
            if entry.get(tool, "kept") == "kept":
                entry[tool] = said
    return {
        "date": pages.today(),
        "versions": pinned("onnxsim", "onnxslim", "onnxoptimizer", "onnxscript", "polygraphy"),
        "operators": operators,
    }


def page(table: pages.Data) -> str:
    """Return the page."""
    operators = table["operators"]
    lines = pages.heading("Mixed files through rewriters", table, "rewriters")
    lines += [
        "Each operator kept in FP32 between low ones. *Kept*: it still reads FP32, its guard is"
        " there, and the outputs are the same. *Gone*: the rewriter folded or replaced it."
        " *Guard gone*: TensorRT-RTX may compute it in half. Run rewriters before a search, not"
        " on its file.",
        "",
    ]
    kinds = ("kept", "gone", "guard gone", "in FP16", "refused", "not opened", "off by")
    lines += pages.counts("rewriter", REWRITERS, operators, {kind: kind for kind in kinds})
    title = "Operators that some rewriter does not keep"
    lines += pages.exceptions(title, REWRITERS, operators, "kept")
    return "\n".join(lines)


if __name__ == "__main__":
    made = data()
    pages.write(NAME, made, page(made))
