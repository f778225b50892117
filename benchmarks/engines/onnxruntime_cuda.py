"""What ONNX Runtime does on CUDA with ONNX operators: docs/engines/onnxruntime-cuda.md.

    cd benchmarks; python -m engines.onnxruntime_cuda

It needs a GPU and onnxruntime-gpu. The models are those of `onnxruntime_cpu`; an operator counts
as CUDA's where its model opens without the CPU's kernels. What the emulator says of each operator,
all low, is held against the kernel's error, on inputs that FP16 does not hold exactly.
`--provider cpu` tries the script, and writes nothing.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from fused_on_gpu import error
from gpu_job import gpu_query

from engines import onnxruntime_cpu, ort_sessions, pages
from engines.children import Children, one_line
from engines.onnxruntime_cpu import better_of, differences, models_of, status
from engines.operator_models import FLOAT, KINDS, Array, cases_by_operator
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.errors import counted
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair

NAME = "onnxruntime-cuda"
ON_CPU = "on the CPU"
FACTOR = 2.0
"""By how much the emulator's error may be off."""
NOTHING = 2.0**-20
"""An error as good as none beside FP16's, as a share of the largest output."""
SEED = 0


def placed(operator: str, row: Any) -> str:
    """Return in a word or two what became of an operator in a type; CPU where it runs there."""
    words = status(operator, row)
    level = {} if isinstance(row, str) else row["DISABLE_ALL"]
    return ON_CPU if "operators" in level and not level["alone"] else words


def inexact(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return inputs a little nearer to 0: within the operator's domain, no numbers of FP16."""
    rng = np.random.default_rng(SEED)
    return {
        name: np.asarray(array * (1 - 0.01 * rng.random(array.shape)), np.float32)
        if array.dtype == np.float32
        else array
        for name, array in arrays.items()
    }


def compared(path: Path, arrays: Mapping[str, Array], provider: Any) -> dict[str, Any] | str:
    """Return what `against_emulator` does, or in words why not."""
    try:
        return against_emulator(path, arrays, provider)
    except Exception as failed:  # whatever a part raises is what came of it
        return one_line(f"{type(failed).__name__}: {failed}")


def against_emulator(path: Path, arrays: Mapping[str, Array], provider: Any) -> dict[str, Any]:
    """Return the error of a model all low: as emulated for ONNX Runtime, and of the kernel."""
    ort.set_default_logger_severity(4)
    if provider != ort_sessions.CPU:
        ort.preload_dlls()
    model = load_model(path)
    layers = len(model.table.names)
    if not layers:
        return {"no layer": True}
    inputs = inexact(arrays)
    emulator = EmulatedBackend(model, "fp16", targets=["onnxruntime"])
    exact = emulator.evaluate(Plan.of(range(layers)), inputs)
    exact = {name: array for name, array in exact.items() if array.dtype.kind == "f"}
    if not any(np.isfinite(array).all() and np.any(array) for array in exact.values()):
        return {"no layer": True}
    emulated = emulator.evaluate(Plan.of(()), inputs)
    typed = path.with_suffix(".typed.onnx")
    save_typed(TypedWriter(model, Pair(low="fp16", high="fp32")).write(Plan.of(())), typed)
    session = ort.InferenceSession(str(typed), providers=[provider])
    names = [output.name for output in session.get_outputs()]
    real = dict(zip(names, session.run(names, inputs), strict=True))
    return {"emulated": error(emulated, exact), "real": error(real, exact)}


def agrees(row: Mapping[str, Any]) -> bool:
    """Tell whether the emulator's error is within the factor of the kernel's, or both are none."""
    low, high = sorted((row["emulated"], row["real"]))
    return bool(high <= max(FACTOR * low, NOTHING) or low == high)


def emulator_rows(folder: Path, provider: Any) -> dict[str, list[Any]]:
    """Return by operator what was found of each of its models in FP32."""
    children = Children(60)
    rows: dict[str, list[Any]] = {}
    for operator in sorted(cases_by_operator()):
        for name, model, arrays in models_of(operator, FLOAT):
            path = folder / f"emulated-{name}.onnx"
            onnx.save(model, path)
            answer = children.call(compared, path, arrays, provider)
            if isinstance(answer, str):
                rows.setdefault(operator, []).append(answer)
            elif "real" in answer:
                rounded = {key: float(f"{number:.3g}") for key, number in answer.items()}
                rows.setdefault(operator, []).append(rounded)
    return rows


def data(provider: Any) -> dict[str, Any]:
    """Return the whole table."""
    operators: dict[str, dict[str, Any]] = {}
    patterns: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        expected = onnxruntime_cpu.write_models(folder)
        children = Children(60)
        for path in sorted(folder.glob("*.onnx")):
            *words, label = path.stem.split("-")
            levels = ort_sessions.LEVELS if words[0] == "pattern" else ort_sessions.LEVELS[:1]
            providers = [provider, ort_sessions.CPU]
            row: Any = children.call(ort_sessions.one, path, levels, providers)
            if words[0] == "pattern":
                became = {} if isinstance(row, str) else row
                found = {level: each.get("operators") for level, each in became.items()}
                patterns.setdefault("-".join(words[1:]), {})[label] = found
                continue
            special = words[0] == "special"
            operator = words[1] if special else words[0]
            entry = operators.setdefault(operator, {"types": {}, "special": {}})
            if not special:
                word = placed(operator, row)
                entry["types"][label] = better_of(entry["types"].get(label), word)
            elif not isinstance(row, str) and row["DISABLE_ALL"].get("outputs"):
                output = row["DISABLE_ALL"]["outputs"][0] or ()
                if row["DISABLE_ALL"]["alone"]:
                    entry["special"].setdefault(label, differences(expected[path.stem], output))
        rows = emulator_rows(folder, provider)
    gpus = sorted({name.partition(",")[0] for name in gpu_query("name") or ["no GPU"]})
    return {
        "date": pages.today(),
        "versions": {"onnx": onnx.__version__, "onnxruntime-gpu": ort.__version__},
        "gpus": gpus,
        "patterns": patterns,
        "operators": dict(sorted(operators.items())),
        "emulator": rows,
    }


def page(table: pages.Data) -> str:
    """Return the page."""
    lines = pages.heading("What ONNX Runtime does on CUDA", table, "onnxruntime_cuda")
    lines += [
        f"On {', '.join(table['gpus'])}, TF32 off. Each operator alone, without optimisation."
        " *Kernel*: CUDA's, in the file's type. *Casts*: in FP32, between Casts."
        f" *{ON_CPU[0].upper()}{ON_CPU[1:]}*: CUDA has no kernel."
        " *In pieces*: as the operators of its definition. *Newer*: than this version knows."
        " A dash: no such form or case.",
        "",
    ]
    rows = []
    for operator, row in table["operators"].items():
        cells = [onnxruntime_cpu.first_words(row["types"].get(label, "-")) for label in KINDS]
        said = [
            f"{label} {'; '.join(words)}"
            for label in ("FP16", "FP32")
            if (words := row["special"].get(label))
        ]
        rows.append((operator, *cells, ". ".join(said)))
    columns = ("operator", *KINDS, "special values, beside the onnx reference")
    lines += pages.table(columns, rows)
    lines += [*_emulator_section(table["emulator"]), "## Fusions by level", ""]
    rows = []
    for name, row in table["patterns"].items():
        for label in ("FP16", "FP32"):
            cells = [onnxruntime_cpu.short(each) for each in row.get(label, {}).values()]
            if cells:
                same = [c if i == 0 or c != cells[i - 1] else "same" for i, c in enumerate(cells)]
                rows.append((name, label, *same))
    lines += pages.table(("graph", "type", "off", "BASIC", "EXTENDED", "ALL"), rows)
    return "\n".join(lines)


def _emulator_section(emulator: Mapping[str, list[Any]]) -> list[str]:
    """Return how often the emulator's error is the kernel's, and where it is not."""
    compared = [(op, row) for op, cases in emulator.items() for row in cases if "real" in row]
    apart = [(op, row) for op, row in compared if not agrees(row)]
    refused = Counter(op for op, cases in emulator.items() for row in cases if "real" not in row)
    lines = [
        "## The emulator beside these kernels",
        "",
        f"All low in FP16, {len(compared)} models of {len({op for op, _ in compared})} operators"
        f": its error, a share of the largest output, is within a factor of {FACTOR:g} in"
        f" {len(compared) - len(apart)}. Not in:",
        "",
    ]
    cells = [(op, f"{row['emulated']:.2g}", f"{row['real']:.2g}") for op, row in apart]
    lines += pages.table(("operator", "emulated", "real"), cells)
    if refused:
        lines += [f"{counted(len(refused), 'operator')} had a file that does not run.", ""]
    return lines


def main() -> None:
    """Write the table, and say how long it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda")
    on_cpu = parser.parse_args().provider == "cpu"
    made = data(ort_sessions.CPU if on_cpu else ort_sessions.CUDA)
    if on_cpu:
        print(json.dumps(made, indent=1))
    else:
        pages.write(NAME, made, page(made))
    print(len(made["operators"]), "operators", file=sys.stderr)


if __name__ == "__main__":
    main()
