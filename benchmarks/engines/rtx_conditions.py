"""What TensorRT-RTX asks of an operator's place that the types of a plan may break.

    cd benchmarks; python -m engines.rtx_conditions --out results

Every operator of ONNX with a version of opset 22 or newer is built, by ONNX's own test cases: in
FP32 alone and between two others, and as the typed model of a plan has it (FORMS). No GPU is used.
`rtx_conditions.json` has every operator, `rtx_conditions.md` those that build in FP32 and not in
all forms of the same graph, written as if the tool knew of no such condition; the last column says
whether the file that it does write is built. `settings/parser_conditions.json` is what the tool
reads. Builds are in a process that may crash.
"""

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeAlias
from unittest.mock import patch

import onnx

from engines.children import Children
from engines.operator_models import (
    CHANGED,
    NODE,
    between,
    cases_by_operator,
    newer_operators,
    with_constants,
)
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.tensorrt.build import Recipe
from precision_bisect.backends.tensorrt.build import build as build_engine
from precision_bisect.backends.tensorrt.flavour import load_flavour
from precision_bisect.exports import write as mixed
from precision_bisect.exports.export import Export, NotWritable
from precision_bisect.graphs import interface
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.typed import layout, pinning
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.pinning import pin, pin_formless
from precision_bisect.precisions import HalfName, Pair
from precision_bisect.protocols import BackendFailure
from precision_bisect.settings.engine_settings import EngineSettings

Place: TypeAlias = Literal["alone", "between"]
ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks/results/rtx_conditions.json"
READ = ROOT / "bisect/precision_bisect/settings/parser_conditions.json"
CASES, TRIES = 2, 8
"""Cases of one operator that are built in FP32, and that are tried, at most.

They differ in their attributes or in the number of inputs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a plan has the operator: its place, whether it is kept, and the types of the interface.

    Between two others these run low.
    """

    place: Place
    kept: bool
    half_interface: bool = False
    low: HalfName = "fp16"


FORMS: Mapping[str, Form] = {
    "low": Form(place="alone", kept=False),
    "low, FP16 interface": Form(place="alone", kept=False, half_interface=True),
    "kept, FP16 interface": Form(place="alone", kept=True, half_interface=True),
    "low between low": Form(place="between", kept=False),
    "kept between low": Form(place="between", kept=True),
    "low in BF16": Form(place="alone", kept=False, low="bf16"),
    "kept between BF16": Form(place="between", kept=True, low="bf16"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of one case of an operator, by form; "" where it was built.

    `fed` counts the float inputs that are no constants. `fp32` has both places. `forms` are
    written as if the tool knew no conditions; `pinned` has those that fail so, as it writes them.
    """

    operator: str
    opset: int
    case: str
    fed: int
    fp32: Mapping[Place, str]
    forms: Mapping[str, str]
    pinned: Mapping[str, str]

    def broken(self) -> dict[str, str]:
        """Return the forms that fail though FP32 in the same place is built."""
        return {form: why for form, why in self.forms.items() if why}


def built(path: Path) -> str:
    """Return why TensorRT-RTX does not build a file, "" if it does."""
    recipe = Recipe(settings=EngineSettings(compute_capability="8.6"), ranges={})
    try:
        build_engine(load_flavour("tensorrt-rtx"), path, recipe)
    except BackendFailure as failure:
        return " ".join(failure.outcome.message.split())[:300]
    return ""


def unpinned() -> ExitStack:
    """Return what, while it is open, makes the tool forget the conditions that it knows."""
    stack = ExitStack()
    nothing = defaultdict[str, frozenset[str]](frozenset)
    for module, name in (
        (layout, "NOT_PARSED"),
        *((module, "AT_THE_BORDER") for module in (interface, pinning)),
    ):
        stack.enter_context(patch.object(module, name, nothing))
    return stack


def typed_file(
    model: onnx.ModelProto, form: Form, folder: Path, *, pins: bool = True, guard: bool = True
) -> tuple[Path | None, str]:
    """Write the typed model of a plan; return its path, or None and why there is none."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    pair = Pair(low=form.low, high="fp32")
    settings = EngineSettings(
        io_types="fp16" if form.half_interface else "model", guard_islands=guard
    )
    loaded = pin_formless(load_model(path).with_io_types(settings.io_types), pair)
    if pins:
        judge = EmulatedBackend(loaded, form.low, targets=("tensorrt-rtx",), late=True)
        loaded = pin(loaded, judge.unbuildable())
    kept = [name for name in loaded.table.names if form.kept and name == NODE]
    try:
        typed = mixed.mixed_model(Export(model=loaded, kept=kept, pair=pair, settings=settings))
    except NotWritable as error:
        return None, f"not written: {error}"
    save_typed(typed, folder / "typed.onnx")
    return folder / "typed.onnx", ""


def written(model: onnx.ModelProto, form: Form, folder: Path, pins: bool) -> str:
    """Build the typed model of a plan; return why that does not go, "" if it does."""
    path, reason = typed_file(model, form, folder, pins=pins)
    return reason if path is None else built(path)


def one(model: onnx.ModelProto, form: str, pins: bool = False) -> str:
    """Build one form of a case, or FP32 for a form that is called after its place."""
    with tempfile.TemporaryDirectory() as place, ExitStack() if pins else unpinned():
        folder = Path(place)
        if form in FORMS:
            return written(model, FORMS[form], folder, pins)
        onnx.save(model, folder / "model.onnx")
        return built(folder / "model.onnx")


def rows(operators: Mapping[str, int], builds: Children) -> Iterator[Row]:
    """Yield what came of the cases of operators."""
    for operator, version in operators.items():
        left = CASES
        for name, case, values in cases_by_operator().get(operator, [])[:TRIES]:
            row = Row(
                operator=operator, opset=version, case=name, fed=-1, fp32={}, forms={}, pinned={}
            )
            for whole in (True, False):
                alone, fed = with_constants(case, values, whole)
                # Operators that want constants get them.
                if left and fed != row.fed and row.fp32.get("alone") != "":
                    row = forms_of_case(replace(row, fed=fed), alone, builds)
                    yield row
            left -= row.fp32.get("alone") == ""


def forms_of_case(row: Row, alone: onnx.ModelProto, builds: Children) -> Row:
    """Return the row with what came of one model."""
    places: dict[Place, onnx.ModelProto] = {"alone": alone, "between": between(alone)}
    fp32 = {place: builds.call(one, model, place) for place, model in places.items()}
    forms = {
        form: builds.call(one, places[how.place], form)
        for form, how in FORMS.items()
        if not fp32[how.place]
    }
    pinned = {
        form: builds.call(one, places[FORMS[form].place], form, pins=True)
        for form, why in forms.items()
        if why
    }
    return replace(row, fp32=fp32, forms=forms, pinned=pinned)


def rows_of_result() -> list[dict[str, Any]]:
    """Return the rows of the result that is kept in the repository."""
    rows: list[dict[str, Any]] = json.loads(RESULT.read_text(encoding="utf-8"))["rows"]
    return rows


def heading() -> str:
    """Return the versions that the result holds for."""
    import tensorrt_rtx

    return f"tensorrt_rtx {tensorrt_rtx.__version__}, onnx {onnx.__version__}, built for 8.6"


def conditions(found: Sequence[Row]) -> dict[str, Any]:
    """Return what the tool reads: the operators that the parser refuses in a type or a place.

    What is refused in FP16 is so in BF16. Where the builder cannot infer a type, the parser can.
    """
    refused: dict[HalfName, set[str]] = {"fp16": set(), "bf16": set()}
    border = set()
    for row in found:
        for form, why in row.broken().items():
            if "must be a network" in why:
                border.add(row.operator)
            elif "infer_type" not in why:
                refused[FORMS[form].low].add(row.operator)
    refused["bf16"] |= refused["fp16"]
    return {
        "tensorrt_rtx": metadata.version("tensorrt_rtx"),
        "onnx": onnx.__version__,
        "refused": {low: sorted(operators - border) for low, operators in refused.items()},
        "at_the_border": sorted(border),
    }


def table(found: Sequence[Row]) -> str:
    """Return the page: the operators with a form that is not built."""
    lines = [
        "# Operators that TensorRT-RTX builds in FP32, and not as a plan has them",
        "",
        f"{heading()}. Written by `benchmarks/engines/rtx_conditions.py`.",
        "",
    ]
    bases = {row.operator for row in found if not row.fp32["alone"]}
    never = {row.operator for row in found} - bases
    untried = newer_operators().keys() - {row.operator for row in found}
    lines += [
        f"{len(bases)} operators of opset {CHANGED} and newer are built in FP32 in some case.",
        "",
        f"Not built in FP32 in any: {', '.join(sorted(never))}.",
        "",
        f"No case with FP32 in ONNX's tests: {', '.join(sorted(untried))}.",
        "",
        "| operator | case | float inputs | place or form | what TensorRT-RTX says | as written |",
        "|---|---|---:|---|---|---|",
    ]
    for row in found:
        broken = row.broken()
        if row.fp32["between"] and not row.fp32["alone"]:
            broken = {"FP32 between others": row.fp32["between"], **broken}
        for form, why in broken.items():
            said = " ".join(why.replace("|", "/").split())
            now = {None: "", "": "built"}.get(row.pinned.get(form), "fails, too")
            lines.append(f"| {row.operator} | {row.case} | {row.fed} | {form} | {said} | {now} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Build all, and write the two files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder for the two files")
    parser.add_argument("--operators", nargs="*", help="these alone")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for one build")
    arguments = parser.parse_args(argv)
    operators = newer_operators()
    if arguments.operators:
        operators = {name: operators[name] for name in arguments.operators}
    found = []
    for row in rows(operators, Children(arguments.timeout)):
        found.append(row)
        print(row.operator, row.case, row.fed, row.fp32, row.broken(), row.pinned, file=sys.stderr)
    data = {"versions": heading(), "rows": [asdict(row) for row in found]}
    written_to = arguments.out / "rtx_conditions.json"
    written_to.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if not arguments.operators:
        READ.write_text(json.dumps(conditions(found), indent=1) + "\n", encoding="utf-8")
    (arguments.out / "rtx_conditions.md").write_text(table(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
