"""What converters to FP16 make of ONNX operators, beside this tool: docs/engines/converters.md.

    cd benchmarks; python -m engines.converters

Each operator stands between two others in an FP32 model, and each tool turns the whole into FP16
with its interface in FP32. Ours keeps nothing. A file is *equal* where ONNX Runtime on a CPU,
without optimisation, gives each output within 1% of the largest value of FP32's, plus what FP16
cannot hold below its normal numbers. OpenVINO's file is run by OpenVINO in FP32. Probes ask for
one property each. AutoCast runs in the environment of `autocast_env.py`.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import autocast_env
import numpy as np
import onnx

from engines import environments, pages, rtx_conditions
from engines.children import Children
from engines.operator_models import Array, between, cases_by_operator, with_constants
from engines.tool_runs import OPENVINO, TOOLS
from models import parse

NAME = "converters"
PACKAGES = (
    *("numpy==2.4.6", "onnx==1.23.2", "onnxruntime==1.32.0", "onnxconverter-common==1.16.0"),
    *("onnxslim==0.1.98", "onnxsim==0.8.1", "onnxoptimizer==0.4.2", "onnxscript==0.7.2"),
    *("polygraphy==0.53.6", "onnx-graphsurgeon==0.6.1", "openvino==2026.4.1", "sympy==1.14.0"),
)
OURS, AUTOCAST = "precision-bisect", "AutoCast"
CONVERTERS = (OURS, AUTOCAST, *TOOLS["converters"], OPENVINO)
CASES = 2
"""Cases of one operator that are converted, at most."""
BEYOND = "(float[5] x) => (float[5] y)"
PROBES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "constants of ±1e-9, ±1e6 and inf": (
        f"{BEYOND} {{ y = Add(x, c) }}",
        {"x": np.zeros(5, np.float32)},
    ),
    "a shape of 4098 halved through a float": (
        "(float[1,4098] x) => (float[2,n] y) <int64[1] i = {1}, float two = {2}, int64[1] m = {2}>"
        " { s = Shape(x) n = Gather(s, i) f = Cast<to = 1>(n) h = Div(f, two)"
        " k = Cast<to = 7>(h) t = Concat<axis = 0>(m, k) r = Reshape(x, t) y = Neg(r) }",
        {"x": np.ones((1, 4098), np.float32)},
    ),
    "a mask of -FLT_MAX": (
        "(bool[1,4] m, float[1,4] x) => (float[1,4] y) <float lowest = {-3.4028235e38}>"
        " { t = Where(m, x, lowest) y = Softmax(t) }",
        {"m": np.array([[True, False, True, True]]), "x": np.ones((1, 4), np.float32)},
    ),
    "a row that is masked throughout": (
        "(bool[1,4] m, float[1,4] x) => (float[1,4] y) <float lowest = {-3.4028235e38}>"
        " { t = Where(m, x, lowest) y = Softmax(t) }",
        {"m": np.zeros((1, 4), bool), "x": np.ones((1, 4), np.float32)},
    ),
    "an If that reads from outside": (
        "(float[4] x, bool c) => (float[4] y) { t = Neg(x) y = If(c) < then_branch = a () =>"
        " (float[4] p) { p = Abs(t) }, else_branch = b () => (float[4] q) { q = Exp(t) }> }",
        {"x": np.ones(4, np.float32), "c": np.array(True)},
    ),
    "a Loop with a float state": (
        "(float[4] x) => (float[4] y) <int64 n = {3}, bool k = {1}> { t = Neg(x) y = Loop(n, k, t)"
        " <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] u)"
        " { d = Identity(c) u = Mul(s, s) }> }",
        {"x": np.ones(4, np.float32)},
    ),
    "a division by x + 1e-8": (
        "(float[4] x) => (float[4] y) <float e = {1e-8}> { t = Add(x, e) y = Div(x, t) }",
        {"x": np.zeros(4, np.float32)},
    ),
    "BatchNormalization with a variance of 1e-9": (
        "(float[1,2,3] x) => (float[1,2,3] y) <float[2] s = {1e-5, 1e-5}, float[2] b = {0, 0},"
        " float[2] v = {1e-9, 1e-9}> { t = Neg(x)"
        " y = BatchNormalization<epsilon = 1e-12>(t, s, b, b, v) }",
        {"x": np.ones((1, 2, 3), np.float32)},
    ),
}
CONSTANTS = {"constants of ±1e-9, ±1e6 and inf": [1e-9, -1e-9, 1e6, -1e6, np.inf]}
"""What `c` is in these probes."""


def models() -> Iterator[tuple[str, onnx.ModelProto, dict[str, Array]]]:
    """Yield operators between two others, and probes, each with what is fed to it."""
    for operator, cases in sorted(cases_by_operator().items()):
        for number, (_, case, values) in enumerate(cases[:CASES]):
            model, fed = with_constants(case, values, False)
            placed = between(model)
            if not fed or len(placed.graph.node) < 3 or not values:
                continue
            name = placed.graph.input[0].name
            index = [value.name for value in case.graph.input].index(name)
            yield f"{operator}-{number}", placed, {name: np.asarray(values[index])}
    for name, (text, arrays) in PROBES.items():
        model = parse(text, opset=20, ir=10)
        for number, node in enumerate(model.graph.node):
            node.name = f"n{number}"
        if name in CONSTANTS:
            constant = np.array(CONSTANTS[name], np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(constant, "c"))
        yield f"probe-{name}", model, dict(arrays)


def ours(model: onnx.ModelProto, folder: str) -> str:
    """Write the model all low; return the path, or why there is none."""
    form = rtx_conditions.Form(place="between", kept=False)
    path, reason = rtx_conditions.typed_file(model, form, Path(folder), pins=False)
    return f"refused: {reason}" if path is None else str(path)


def write_models(folder: Path) -> dict[str, dict[str, str]]:
    """Write all models, and the files of this tool and AutoCast; return their refusals."""
    refusals: dict[str, dict[str, str]] = {OURS: {}, AUTOCAST: {}}
    children = Children(60)
    jobs = {}
    for name, model, arrays in models():
        path = folder / f"{name}.onnx"
        onnx.save(model, path)
        np.savez(path.with_suffix(".npz"), **dict[str, Any](arrays))
        jobs[name] = [
            *("--onnx_path", str(path), "--output_path", str(folder / f"{name}.{AUTOCAST}.made")),
            *("--low_precision_type", "fp16", "--keep_io_types", "--log_level", "CRITICAL"),
        ]
        with tempfile.TemporaryDirectory() as place:
            answer = children.call(ours, model, place)
            made = Path(answer)
            if made.is_absolute():
                onnx.save(onnx.load(made), folder / f"{name}.{OURS}.made")
            else:
                refusals[OURS][name] = answer.removeprefix("refused: ")
    if autocast_env.python() is None:
        autocast_env.make()
    said = autocast_env.convert([*jobs.values()])
    refusals[AUTOCAST] = {name: why for name, why in zip(jobs, said, strict=True) if why}
    return refusals


def verdict(row: Mapping[str, Any] | str, exact: Mapping[str, Any]) -> str:
    """Return in words how a tool's file compares with FP32."""
    if isinstance(row, str):
        return row
    for reason in ("refused", "not opened", "not run"):
        if reason in row:
            return f"{reason}: {row[reason]}"
    for one, other in zip(exact["outputs"], row["outputs"], strict=False):
        if one is None or other is None:
            continue
        if len(one) != len(other):
            return "another shape"
        wide, narrow = np.array(one), np.array(other)
        finite = np.isfinite(wide)
        if not np.array_equal(wide[~finite], narrow[~finite], equal_nan=True):
            return "not finite, or finite, where FP32 is not"
        if not np.isfinite(narrow[finite]).all():
            return "not finite where FP32 is"
        if not finite.any():
            continue
        room = 0.01 * float(np.abs(wide[finite]).max()) + 2.0**-14
        distance = float(np.abs(wide[finite] - narrow[finite]).max())
        if distance > room:
            return f"off by {distance:.2g} of {float(np.abs(wide[finite]).max()):.2g}"
    return "equal"


Rows: TypeAlias = list[tuple[str, dict[str, Any], dict[str, Any]]]


def run_tools(kind: str, folder: Path) -> Rows:
    """Return what tools of a kind make of a folder's models that run in FP32.

    By model its name, what came of it by tool, and what came of FP32.
    """
    interpreter = environments.python("engines-tools", PACKAGES)
    words = ("engines.tool_runs", kind, str(folder))
    rows = json.loads(environments.run_module(interpreter, *words).splitlines()[-1])
    return [
        (name, row, row[""])
        for name, row in rows.items()
        if not isinstance(row[""], str) and "outputs" in row[""]
    ]


def pinned(*packages: str) -> dict[str, str]:
    """Return the versions of packages, after those of ONNX and its runtime."""
    versions = dict(each.split("==") for each in PACKAGES)
    return {name: versions[name] for name in ("onnx", "onnxruntime", *packages)}


def data() -> dict[str, Any]:
    """Return the whole table."""
    operators: dict[str, dict[str, str]] = {}
    probes: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        refusals = write_models(folder)
        rows = run_tools("converters", folder)
    for name, row, exact in rows:
        for tool in CONVERTERS:
            answer = row.get(tool, {"refused": refusals.get(tool, {}).get(name, "no file")})
            said = verdict(answer, exact)
            if name.startswith("probe-"):
                entry = probes.setdefault(name.removeprefix("probe-"), {"FP32": exact["outputs"]})
                outputs = answer.get("outputs") if not isinstance(answer, str) else None
                entry[tool] = {"verdict": said, "outputs": outputs}
            else:
                entry = operators.setdefault(name.partition("-")[0], {})
                # The worst of the cases counts.
                if entry.get(tool, "equal") == "equal":
                    entry[tool] = said
    return {
        "date": pages.today(),
        "versions": pinned("onnxconverter-common", "onnxslim", "openvino")
        | {"nvidia-modelopt": autocast_env.VERSION},
        "probes": probes,
        "operators": operators,
    }


def _values(outputs: Sequence[Sequence[float]] | None) -> str:
    return "" if not outputs else ", ".join(f"{number:.3g}" for number in outputs[0][:5])


def page(table: pages.Data) -> str:
    """Return the page."""
    operators = table["operators"]
    lines = pages.heading("Converters to FP16, operator by operator", table, "converters")
    lines += [
        "Each operator between two others, all of it converted, the interface in FP32. *Equal*:"
        " within 1% of FP32 on ONNX Runtime's CPU, which computes most operators in FP32; what"
        " FP16 does to the values is another question. Ours is the plan that keeps nothing: what"
        " the probes show is what a search finds, and keeps. NNCF converts no ONNX to FP16.",
        "",
    ]
    columns = {"off": "off by", "not finite": "not finite"}
    kinds = ("equal", "refused", "not opened", "not run")
    lines += pages.counts("tool", CONVERTERS, operators, {kind: kind for kind in kinds} | columns)
    lines += ["## Probes", ""]
    probes = table["probes"]
    lines += pages.table(
        ("probe", "FP32", *CONVERTERS),
        (
            (name, _values(row["FP32"]), *(_probe(row[tool]) for tool in CONVERTERS))
            for name, row in probes.items()
        ),
    )
    title = "Operators that some tool does not convert to an equal file"
    lines += pages.exceptions(title, CONVERTERS, operators, "equal")
    return "\n".join(lines)


def _probe(answer: Mapping[str, Any]) -> str:
    shown = _values(answer["outputs"])
    return shown or pages.short(answer["verdict"])


if __name__ == "__main__":
    made = data()
    pages.write(NAME, made, page(made))
