"""What TensorRT-RTX makes of each ONNX operator: docs/engines/tensorrt-rtx.md and its data.

    cd benchmarks; python -m engines.rtx_operators

Every operator of the standard is parsed alone in FP16, BF16 and FP32, in each of its forms of
opsets 11 to 28. An engine is built for compute capability 8.6 with the operator kept in FP32
between FP16 neighbours, as a plan writes it, once without the guard that this tool puts before
lone products. The engine's own text says what the operator became: a kernel of it that has no
Cast, and neither data nor constants in FP32, computes in half. `conditions` are those that
`engines.rtx_conditions` found, `quantized` is what `engines.rtx_quantized` reads of operators
between INT8 or FP8. No GPU is used. It takes 7 minutes on two cores; a run that was cut goes on
where it ended.
"""

import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import onnx

from engines import pages, rtx_conditions, rtx_quantized, rtx_steps
from engines.children import Children, one_line
from engines.kept_rows import Rows
from engines.operator_models import (
    KINDS,
    NODE,
    all_cases,
    between,
    cases_by_operator,
    is_standard,
    with_constants,
)
from models import normal, parse, with_weights
from operator_cases import STANDARD
from rtx import build

NAME = "tensorrt-rtx"
VERSIONS = {"tensorrt_rtx": metadata.version("tensorrt_rtx"), "onnx": onnx.__version__}
LABELS = ("FP16", "BF16", "FP32")
SHOWN = 5
"""So many layers of an operator are named on the page."""
PRODUCTS: Mapping[str, tuple[str, Mapping[str, tuple[int, ...]]]] = {
    "MatMul": ("(float[64,128] x) => (float[64,128] y) { y = MatMul(x, w) }", {"w": (128, 128)}),
    "Gemm": ("(float[64,128] x) => (float[64,128] y) { y = Gemm(x, w) }", {"w": (128, 128)}),
    "Einsum": (
        '(float[64,128] x) => (float[64,128] y) { y = Einsum<equation = "ij,jk->ik">(x, w) }',
        {"w": (128, 128)},
    ),
    "Conv": (
        "(float[1,16,8,8] x) => (float[1,16,n,m] y) { y = Conv(x, w) }",
        {"w": (16, 16, 3, 3)},
    ),
    "ConvTranspose": (
        "(float[1,16,8,8] x) => (float[1,16,n,m] y) { y = ConvTranspose(x, w) }",
        {"w": (16, 16, 2, 2)},
    ),
}
"""Products of a real size; ONNX's own cases are too small for the kernels that matter."""


def parsed(label: str) -> dict[str, dict[str, Any]]:
    """Return by operator what the parser makes of it in a type, by its newest form."""
    rows: dict[str, dict[str, Any]] = {}
    newest: dict[str, int] = {}
    for case in all_cases(KINDS[label]):
        row = rows.setdefault(case.op_type, {"opsets": [], "layers": None, "refused": {}})
        if not is_standard(case.model):
            continue
        answer = rtx_steps.parse(case.model)
        if isinstance(answer, str):
            row["refused"][str(case.opset)] = one_line(answer)
            continue
        row["opsets"] = sorted({*row["opsets"], case.opset})
        if case.opset > newest.get(case.op_type, 0):
            newest[case.op_type] = case.opset
            row["layers"] = [f"{name} {stored}" for name, stored in answer.layers]
    for row in rows.values():
        # What one case of a form is refused for counts where no case of that form is parsed.
        refused = row["refused"].items()
        row["refused"] = {form: said for form, said in refused if int(form) not in row["opsets"]}
    return rows


def parsed_in_all_types(rows: Rows) -> dict[str, dict[str, Any]]:
    """Return by operator what the parser makes of it, each field by type."""
    operators: dict[str, dict[str, Any]] = {}
    children = Children(600)
    for label in KINDS:
        in_type = rows.row(f"parsed {label}", partial(children.call, parsed, label))
        if isinstance(in_type, str):
            sys.exit(f"nothing was parsed in {label}: {in_type}")
        for operator, row in in_type.items():
            fields = operators.setdefault(operator, {"opsets": {}, "layers": {}, "refused": {}})
            for name, value in row.items():
                if value or (name == "layers" and value is not None):
                    fields[name][label] = value
    return operators


def island_cases(operator: str) -> Iterator[onnx.ModelProto]:
    """Yield models of an operator with what it reads in FP32, and others as constants."""
    if operator in PRODUCTS:
        text, shapes = PRODUCTS[operator]
        weights = {name: normal(*shape) for name, shape in shapes.items()}
        model = with_weights(parse(text, opset=20, ir=10), weights)
        model.graph.node[0].name = NODE
        yield model
    for _, model, values in cases_by_operator().get(operator, [])[: rtx_conditions.TRIES]:
        yield with_constants(model, values, False)[0]


def placed_cases(operator: str) -> Iterator[onnx.ModelProto]:
    """Yield the models of `island_cases` between two other operators."""
    for model in island_cases(operator):
        placed = between(model)
        # The builder takes a sign into a product; these it does not.
        for node in placed.graph.node:
            if node.name != NODE:
                node.op_type = "Sigmoid" if node.name.startswith("before") else "Tanh"
        if placed.graph.node[0].name != NODE and len(placed.graph.node) > 2:
            yield placed


def island(model: onnx.ModelProto, guard: bool) -> str:
    """Return what the engine computes an operator in that is kept between FP16 neighbours."""
    with tempfile.TemporaryDirectory() as place:
        form = rtx_conditions.Form(place="between", kept=True, half_interface=True)
        path, reason = rtx_conditions.typed_file(model, form, Path(place), guard=guard)
        if path is None:
            return reason
        return computed_in(build(path))


def computed_in(text: str) -> str:
    """Return "fp32", "half" or "not shown", by the layers of an engine that name the node."""
    lines = [line for line in text.splitlines() if f"[ONNX Layer: {NODE}]" in line]
    # Generated kernels that name a product's node as well only bring its data along.
    products = [line for line in lines if "LayerType: kgen" not in line]
    kinds = set()
    for line in products or lines:
        read = line.partition("Outputs: ")[0] if products else line
        tensors = re.findall(r"Dimensions: \[([^\]]*)\].*?Datatype: (\w+)", read)
        types = {kind for shape, kind in tensors if shape != "1"} & {"Half", "Float"}
        casts = not products and "Cast" in line.partition(",")[0]
        kinds.add("fp32" if casts or "Float" in types else "half" if types else "")
    return "fp32" if "fp32" in kinds else "half" if "half" in kinds else "not shown"


Build: TypeAlias = Callable[[onnx.ModelProto, bool], str]


def island_of(operator: str, build_one: Build) -> dict[str, str]:
    """Return what an operator's island becomes without a guard, and as this tool writes it."""
    answers: dict[str, str] = {}
    for placed in placed_cases(operator):
        plain = build_one(placed, False)
        answers = {"plain": plain, "ours": plain}
        if plain == "half":
            answers["ours"] = build_one(placed, True)
        if plain in ("fp32", "half"):
            break
    return answers


def islands(rows: Rows, children: Children) -> dict[str, dict[str, str]]:
    """Return the operators that have an island, each with what it becomes."""

    def built(model: onnx.ModelProto, guard: bool) -> str:
        return one_line(children.call(island, model, guard))

    answers = {
        operator: rows.row(f"island {operator}", partial(island_of, operator, built))
        for operator in sorted(STANDARD)
    }
    return {operator: answer for operator, answer in answers.items() if answer}


def quantized(rows: Rows, children: Children, operator: str) -> dict[str, dict[str, str]]:
    """Return what an operator reads between INT8 or FP8."""
    models = placed_cases(operator)
    make = partial(rtx_quantized.rows, operator, models, children)
    answers: dict[str, dict[str, str]] = rows.row(f"quantized {operator}", make)
    return answers


def conditions() -> dict[str, dict[str, str]]:
    """Return by operator the forms of a plan that are not built, in the builder's words."""
    found: dict[str, dict[str, str]] = {}
    for row in rtx_conditions.rows_of_result():
        for form, why in row["forms"].items():
            if why:
                found.setdefault(row["operator"], {}).setdefault(form, why)
    return found


def data(rows: Rows) -> dict[str, Any]:
    """Return the whole table."""
    operators = parsed_in_all_types(rows)
    children = Children(120)
    kept = islands(rows, children)
    low = {
        operator: quantized(rows, children, operator)
        for operator, row in operators.items()
        if row["opsets"].get("FP32")
    }
    limits = conditions()
    return {
        "date": pages.today(),
        "versions": VERSIONS,
        "operators": {
            operator: {
                **operators.get(operator, {"opsets": {}, "layers": {}, "refused": {}}),
                "island": kept.get(operator, {}),
                "conditions": limits.get(operator, {}),
                "quantized": low.get(operator, {}),
            }
            for operator in sorted(operators.keys() | kept.keys())
        },
    }


def _layers(row: Mapping[str, Any]) -> str:
    layers = row["layers"].get("FP16")
    if layers is None:
        return ""
    stored = {layer.split()[1] for layer in layers}
    names = [layer.split()[0] if len(stored) == 1 else layer for layer in layers]
    more = f", … ({len(names)})" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more or "only moved"


def _status(row: Mapping[str, Any], label: str) -> str:
    refused = row["refused"].get(label, {})
    if not row["opsets"].get(label):
        said = list(refused.values())
        return f"no: {_said(said[-1])}" if said else "-"
    return "yes" + (f", not of opset {', '.join(map(str, refused))}" if refused else "")


def _said(words: str) -> str:
    """Return what a parser says, as short as a cell."""
    if rtx_steps.lacks_importer(words):
        return "neither importer nor plug-in"
    return words.removeprefix("Assertion failed: ")[:120]


def _island(row: Mapping[str, Any]) -> str:
    plain, ours = row["island"].get("plain", ""), row["island"].get("ours", "")
    if plain == "half" and not row["layers"].get("FP16"):
        return "half, as it only moves values"
    if plain == "half":
        return f"**half**; as this tool writes it {ours}"
    return plain if plain in ("fp32", "not shown", "") else "not built"


def _quantized(row: Mapping[str, Any], kind: str) -> str:
    """Return what a row says of a type, once where both forms are alike."""
    said = row["quantized"].get(kind)
    if not said:
        return ""
    before, around = (
        f"no: {_said(words.removeprefix(rtx_quantized.REFUSED))}"
        if words.startswith(rtx_quantized.REFUSED)
        else words
        for words in (said[form] for form in rtx_quantized.FORMS)
    )
    return before if before == around else f"{before}; around: {around}"


def page(table: pages.Data) -> str:
    """Return the page."""
    operators = table["operators"]
    lost = [name for name, row in operators.items() if _island(row).startswith("**")]
    lines = pages.heading("What TensorRT-RTX makes of ONNX operators", table, "rtx_operators")
    lines += [
        "Each operator alone, in its newest form; engines for compute capability 8.6, built"
        " without a GPU. *Island* is the type it computes in when it is kept in FP32 between FP16"
        " neighbours: **half** means that the builder takes the Casts away. *Not shown*: no"
        " kernel names it. A dash: no such form or case. *INT8* (for 8.6) and"
        " *FP8* (for 8.9) have Q/DQ before each operand, *around*: behind the result, too. They"
        " say what its own kernels read; *generated*: a kernel of several operators.",
        "",
        f"Unguarded islands that become half: {', '.join(lost)}.",
        "",
    ]
    lines += pages.table(
        (
            "operator",
            "FP16",
            "BF16",
            "FP32",
            "layers in FP16",
            "island",
            "INT8",
            "FP8",
            "not built",
        ),
        (
            (
                name,
                *(_status(row, label) for label in LABELS),
                _layers(row),
                _island(row),
                *(_quantized(row, kind) for kind in rtx_quantized.TYPES),
                ", ".join(row["conditions"]),
            )
            for name, row in operators.items()
        ),
    )
    return "\n".join(lines)


if __name__ == "__main__":
    rows_made = Rows(NAME, VERSIONS)
    made = data(rows_made)
    pages.write(NAME, made, page(made))
    rows_made.end()
