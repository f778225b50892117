"""What ONNX Runtime does on a CPU with ONNX operators in 16 bits: docs/engines/onnxruntime-cpu.md.

    cd benchmarks; python -m engines.onnxruntime_cpu

Two versions, the oldest that the tool allows and the one that is installed. Each operator, alone
in its graph, without optimisation, in FP16, BF16 and FP32; what graphs of several operators become
at each level. Operators that work element by element read NaN, infinities, -0 and subnormals, too,
and what comes is compared with the onnx reference in FP32.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from engines import environments, ort_sessions, pages
from engines.children import Children
from engines.operator_models import (
    FIRST,
    FLOAT,
    KINDS,
    Array,
    as_kind,
    cases_by_operator,
    in_type,
    is_valid,
)
from models import parse
from precision_bisect.graphs.graph import opset

NAME = "onnxruntime-cpu"
OLDEST = "1.24.1"
"""The oldest release of the range in pyproject.toml."""
PACKAGES = (f"onnxruntime=={OLDEST}", "onnx==1.23.2", "numpy==2.4.6", "ml_dtypes==0.6.0")
SPECIAL: Mapping[str, float] = {
    "NaN": np.nan,
    "inf": np.inf,
    "-inf": -np.inf,
    "-0": -0.0,
    "subnormal": 2.0**-24,
    "1": 1.0,
}
"""Of the subnormals the smallest of FP16; FP32 has it as a normal number."""
ON_CPU = "on the CPU"
RELEASED = 26
"""The newest opset that a release of ONNX Runtime takes without a word of warning."""
CASES = 4
"""Cases of one operator that are run, at most; what the best of them does counts."""
_HEAD = "(float[4,8] x, float[4,8] z) => (float y)"
_ROWS = "<float[8] s = {1,2,3,4,5,6,7,8}, float e = {1e-5}, float two = {2}, int64[1] a = {1}>"
PATTERNS: Mapping[str, str] = {
    "LayerNormalization in pieces": f"{_HEAD} {_ROWS} {{ m = ReduceMean(x, a) d = Sub(x, m)"
    " q = Pow(d, two) v = ReduceMean(q, a) w = Add(v, e) r = Sqrt(w) n = Div(d, r)"
    " p = Mul(n, s) y = Add(p, s) }",
    "RMSNormalization in pieces": f"{_HEAD} {_ROWS} {{ q = Pow(x, two) v = ReduceMean(q, a)"
    " w = Add(v, e) r = Sqrt(w) n = Div(x, r) y = Mul(n, s) }",
    "LayerNormalization behind an Add": f"{_HEAD} {_ROWS} {{ t = Add(x, z)"
    " y = LayerNormalization(t, s, s) }",
    "GELU in pieces": f"{_HEAD} <float r = {{1.4142135}}, float one = {{1}}, float h = {{0.5}}>"
    " { d = Div(x, r) f = Erf(d) g = Add(f, one) p = Mul(x, g) y = Mul(p, h) }",
    "GELU behind a bias": f"{_HEAD} <float[8] s = {{1,2,3,4,5,6,7,8}}>"
    " { t = Add(x, s) y = Gelu(t) }",
    "Sigmoid times its input": f"{_HEAD} {{ t = Sigmoid(x) y = Mul(x, t) }}",
    "MatMul and Add": f"{_HEAD} <float[4] s = {{1,2,3,4}}>"
    " { t = Transpose(z) q = MatMul(x, t) y = Add(q, s) }",
    "MatMul of a scaled input": f"{_HEAD} <float h = {{0.125}}>"
    " { t = Transpose(z) q = Mul(x, h) y = MatMul(q, t) }",
    "Softmax of a masked input": f"{_HEAD} {{ t = Add(x, z) y = Softmax<axis = 1>(t) }}",
    "Conv and BatchNormalization": "(float[1,2,4,4] x) => (float y)"
    " <float[2,2,1,1] w = {1,2,3,4}, float[2] s = {1,2}>"
    " { t = Conv(x, w) y = BatchNormalization<epsilon = 1e-5>(t, s, s, s, s) }",
    "Conv and Relu": "(float[1,2,4,4] x) => (float y) <float[2,2,1,1] w = {1,2,3,4}>"
    " { t = Conv(x, w) y = Relu(t) }",
    "Conv, Mul and Add": "(float[1,2,4,4] x) => (float y)"
    " <float[2,2,1,1] w = {1,2,3,4}, float[2,1,1] s = {1,2}>"
    " { t = Conv(x, w) m = Mul(t, s) y = Add(m, s) }",
    "Relu and Clip": f"{_HEAD} <float l = {{-1}}, float h = {{6}}>"
    " { t = Relu(x) y = Clip(t, l, h) }",
    "Gemm and Relu": f"{_HEAD} {{ t = Gemm<transB = 1>(x, z) y = Relu(t) }}",
    "a Cast to FP16 and back": f"{_HEAD} {{ t = Cast<to = 10>(x) y = Cast<to = 1>(t) }}",
    "a product by 1 and a sum with 0": f"{_HEAD} <float one = {{1}}, float o = {{0}}>"
    " { t = Mul(x, one) y = Add(t, o) }",
}
"""Graphs that some level makes something else of, in FP32; constants and ends go to FP16 along."""


def models_of(
    operator: str, kind: int, cases: int = CASES
) -> Iterator[tuple[str, onnx.ModelProto, dict[str, Array]]]:
    """Yield models of an operator in a type, each with its name and what is fed to it."""
    for number, (_, source, values) in enumerate(cases_by_operator()[operator][:cases]):
        model = in_opened_form(operator, in_type(source, kind))
        if model is None:
            continue
        arrays = {}
        for value, array in zip(model.graph.input, values, strict=False):
            wanted = value.type.tensor_type.elem_type
            array = np.asarray(array)
            arrays[value.name] = as_kind(array, wanted) if wanted == kind else array
        for value in model.graph.input[len(values) :]:
            shape = [each.dim_value for each in value.type.tensor_type.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            arrays[value.name] = np.ones(shape, dtype)
        yield f"{operator}-{number}", model, arrays


def in_opened_form(operator: str, model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return a model in the newest form of its operator that releases open, else in its newest.

    As old as that form, for older versions to open. None where it is valid in neither.
    """
    forms = {
        schema.since_version
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.name == operator and not schema.domain and schema.since_version <= opset(model)
    }
    for form in sorted(forms, key=lambda form: (form <= RELEASED, form), reverse=True):
        model.opset_import[0].version = max(form, FIRST)
        model.ir_version = helper.find_min_ir_version_for([*model.opset_import])
        if is_valid(model):
            return model
    return None


def with_special(model: onnx.ModelProto, arrays: dict[str, Array], kind: int) -> bool:
    """Put the special values into the first input; tell whether all have room in it."""
    if not model.graph.input:
        return False
    first = model.graph.input[0]
    inferred = onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type
    sizes = [[d.dim_value for d in t.shape.dim] for t in (first.type.tensor_type, inferred)]
    size = int(np.prod(sizes[0])) if sizes[0] else 0
    if sizes[0] != sizes[1] or inferred.elem_type != kind or size < len(SPECIAL):
        return False
    if first.type.tensor_type.elem_type != kind:
        return False
    values = np.resize(np.array([*SPECIAL.values()], np.float32), sizes[0])
    arrays[first.name] = as_kind(values, kind)
    return True


def reference(model: onnx.ModelProto, arrays: dict[str, Array]) -> list[float]:
    """Return the first output that the onnx reference computes."""
    with np.errstate(all="ignore"):
        outputs: Any = ReferenceEvaluator(model).run(None, arrays)
    return [float(number) for number in np.ravel(outputs[0])]


def elementwise(model: onnx.ModelProto, arrays: dict[str, Array]) -> list[float] | None:
    """Return the same; None where an element depends on more than the input at its place."""
    first = model.graph.input[0].name
    rolled = np.roll(np.ravel(arrays[first]), 1).reshape(arrays[first].shape)
    one, other = reference(model, arrays), reference(model, {**arrays, first: rolled})
    return one if np.array_equal(np.roll(one, 1), other, equal_nan=True) else None


def differences(expected: Sequence[float], found: Sequence[float]) -> list[str]:
    """Return in words what special values gave that the reference does not give."""
    words = []
    for (name, _), one, other in zip(SPECIAL.items(), expected, found, strict=False):
        if _word(one) != _word(other):
            words.append(f"{name}: {_word(other)} for {_word(one)}")
    return words


def _word(number: float) -> str:
    """Return a number as text, rounded: functions of FP16 differ in their last place."""
    if np.isnan(number):
        return "NaN"
    if number == 0:
        return "-0" if np.signbit(number) else "0"
    return "inf" if number == np.inf else "-inf" if number == -np.inf else "finite"


def write_models(folder: Path) -> dict[str, list[float]]:
    """Write all models; return what the reference makes of the special values, by name."""
    expected: dict[str, list[float]] = {}
    children = Children(30)
    for label, kind in KINDS.items():
        models = chain.from_iterable(models_of(each, kind) for each in sorted(cases_by_operator()))
        for name, model, arrays in models:
            _write(folder / f"{name}-{label}", model, arrays)
            if label != "BF16" and with_special(model, arrays, kind):
                wide = in_type(model, FLOAT)
                fed = {key: as_kind(array, FLOAT) for key, array in arrays.items()}
                answer = children.call(elementwise, wide, fed)
                if not isinstance(answer, str) and answer is not None:
                    stored = as_kind(np.array(answer, np.float32), kind)
                    expected[f"special-{name}-{label}"] = stored.astype(np.float64).tolist()
                    _write(folder / f"special-{name}-{label}", model, arrays)
        for name, text in PATTERNS.items():
            model = in_type(parse(text, opset=20, ir=10), kind)
            for value in model.graph.output:
                value.type.tensor_type.ClearField("shape")
            model = onnx.shape_inference.infer_shapes(model)
            if label == "BF16" or not is_valid(model):
                continue
            shapes = {
                value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
                for value in model.graph.input
            }
            arrays = {key: as_kind(np.ones(shape), kind) for key, shape in shapes.items()}
            _write(folder / f"pattern-{name}-{label}", model, arrays)
    return expected


def _write(path: Path, model: onnx.ModelProto, arrays: Mapping[str, Array]) -> None:
    onnx.save(model, path.with_name(path.name + ".onnx"))
    # NumPy's files know no bfloat16.
    plain: dict[str, Any] = {
        name: array.astype(np.float32) if array.dtype.name == "bfloat16" else array
        for name, array in arrays.items()
    }
    np.savez(path.with_name(path.name + ".npz"), **plain)


def status(operator: str, row: Any) -> str:
    """Return in a word or two what a version did with an operator in a type."""
    if isinstance(row, str):
        return row
    plain = row["DISABLE_ALL"]
    if "refused" in plain:
        return f"refused: {plain['refused']}"
    if "fails" in plain:
        return f"opens, fails: {plain['fails']}"
    if not plain.get("alone", True):
        return ON_CPU
    others = [each for each in plain["operators"] if each != operator]
    if operator not in plain["operators"]:
        return "in pieces"
    return "Casts" if "Cast" in others and operator != "Cast" else "kernel"


def better_of(old: str | None, new: str) -> str:
    """Return the better of two cases of an operator: one may need what another does not."""
    return new if old is None or old.startswith(("refused", "opens")) else old


def status_of(operator: str, label: str) -> str:
    """Return what the version that is installed does with an operator in a type."""
    best = None
    with tempfile.TemporaryDirectory() as place:
        for name, model, arrays in models_of(operator, KINDS[label]):
            _write(Path(place) / name, model, arrays)
            row = ort_sessions.one(Path(place) / f"{name}.onnx", ort_sessions.LEVELS[:1])
            best = better_of(best, status(operator, row))
    return best or ""


def data() -> dict[str, Any]:
    """Return the whole table."""
    with tempfile.TemporaryDirectory() as place:
        expected = write_models(Path(place))
        answers = [
            run_sessions(Path(place), interpreter)
            for interpreter in (environments.python("engines-oldest", PACKAGES), None)
        ]
    return by_version("onnxruntime", answers, expected)


def run_sessions(
    folder: Path, interpreter: Path | None, *words: str, site: Path | None = None
) -> dict[str, Any]:
    """Return what the version in an environment, or in a folder, makes of a folder's models."""
    words = ("engines.ort_sessions", str(folder), *words)
    answer: dict[str, Any] = json.loads(
        environments.run_module(interpreter, *words, site=site).splitlines()[-1]
    )
    return answer


def by_version(
    package: str, answers: Sequence[Mapping[str, Any]], expected: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """Return a table of what versions make of all models, the oldest first.

    `expected` has what the reference makes of special values.
    """
    operators: dict[str, dict[str, Any]] = {}
    patterns: dict[str, dict[str, Any]] = {}
    ages = ("oldest", "newest")[-len(answers) :]
    for answer in answers:
        version = answer["onnxruntime"]
        for name, row in answer["rows"].items():
            kind, *words, label = name.split("-")
            key = f"{label} {version}"
            if kind == "pattern":
                levels = {} if isinstance(row, str) else row
                became = {level: each.get("operators") for level, each in levels.items()}
                patterns.setdefault("-".join(words), {})[key] = became
                continue
            operator = words[0] if kind == "special" else kind
            fields = operators.setdefault(operator, {"types": {}, "special": {}})
            if kind != "special":
                better = better_of(fields["types"].get(key), status(operator, row))
                fields["types"][key] = better
            elif not isinstance(row, str) and row["DISABLE_ALL"].get("outputs"):
                output = row["DISABLE_ALL"]["outputs"][0] or ()
                if row["DISABLE_ALL"].get("alone", True):
                    fields["special"].setdefault(key, differences(expected[name], output))
    versions = {
        f"{package} ({age})": answer["onnxruntime"]
        for age, answer in zip(ages, answers, strict=True)
    }
    return {
        "date": pages.today(),
        "versions": {"onnx": onnx.__version__} | versions,
        "patterns": patterns,
        "operators": dict(sorted(operators.items())),
    }


def page(table: pages.Data) -> str:
    """Return the page."""
    lines = pages.heading("What ONNX Runtime does on a CPU", table, "onnxruntime_cpu")
    lines += [
        "Each operator alone, without optimisation. *Kernel*: it runs in the type of the file."
        " *Casts*: in FP32, between Casts that ONNX Runtime puts in. *In pieces*: as the operators"
        " of its definition. *Newer*: a version that does not know the opset. A dash: ONNX has no"
        " such form, or no case of it.",
        "",
        *two_entries(table),
        *operators_by_version(table),
        *fusions_by_version(table),
    ]
    return "\n".join(lines)


def compared_versions(table: pages.Data) -> list[str]:
    """Return the versions of ONNX Runtime that a table is of, the oldest first."""
    return [version for name, version in table["versions"].items() if name.endswith(")")]


def two_entries(table: pages.Data) -> list[str]:
    """Return the line that says in which order versions stand in a cell."""
    versions = compared_versions(table)
    return [f"A cell with two entries: {', then '.join(versions)}.", ""] if versions[1:] else []


def operators_by_version(table: pages.Data) -> list[str]:
    """Return the table of operators."""
    versions = compared_versions(table)
    rows = []
    for operator, row in table["operators"].items():
        cells = []
        for label in KINDS:
            words = [first_words(row["types"].get(f"{label} {v}", "-")) for v in versions]
            cells.append(" / ".join(dict.fromkeys(words)))
        said = [
            f"{label} {'; '.join(words)}"
            for label in ("FP16", "FP32")
            if (words := row["special"].get(f"{label} {versions[-1]}"))
        ]
        rows.append((operator, *cells, ". ".join(said)))
    columns = ("operator", *KINDS, "special values, beside the onnx reference")
    return pages.table(columns, rows)


def fusions_by_version(table: pages.Data) -> list[str]:
    """Return the chapter on graphs of several operators."""
    versions = compared_versions(table)
    rows = []
    for name, row in table["patterns"].items():
        for label in ("FP16", "FP32"):
            shown = {version: row.get(f"{label} {version}") for version in versions}
            if all(levels == shown[versions[0]] for levels in shown.values()):
                shown = {"both" if versions[1:] else versions[0]: shown[versions[0]]}
            for version, levels in shown.items():
                if levels is None:
                    continue
                cells = [short(each) for each in levels.values()]
                same = [c if i == 0 or c != cells[i - 1] else "same" for i, c in enumerate(cells)]
                rows.append((name, f"{label}, {version}", *same))
    columns = ("graph", "type, version", "off", "BASIC", "EXTENDED", "ALL")
    return ["## Fusions by level", "", *pages.table(columns, rows)]


def first_words(words: str) -> str:
    """Return a status as short as a cell; a file may be newer than what reads it."""
    newer = "opset" in words or "IR_VERSION" in words.upper().replace(" ", "_")
    return "newer" if newer else words.partition(":")[0]


def short(operators: Sequence[str] | None) -> str:
    """Return the operators of a graph as a cell."""
    return ", ".join(operators) if operators is not None else "refused"


if __name__ == "__main__":
    made = data()
    pages.write(NAME, made, page(made))
