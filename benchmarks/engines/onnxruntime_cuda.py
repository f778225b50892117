"""What ONNX Runtime does on CUDA with ONNX operators: docs/engines/onnxruntime-cuda.md.

    cd benchmarks; python -m engines.onnxruntime_cuda [--oldest FOLDER]

It needs a GPU and onnxruntime-gpu; FOLDER has an older one, the second version of the table. The
models are those of `onnxruntime_cpu`; an operator counts as CUDA's where its model opens without
the CPU's kernels. What the emulator says of each operator, all low, is held against the kernel's
error, on inputs that FP16 does not hold exactly: ONNX's cases, and models of real sizes.
`--provider cpu` tries the script, and writes nothing; `--errors` prints what the version that is
installed errs by. `--emulator` needs no GPU: it writes today's emulator beside what was measured.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from fused_on_gpu import error
from gpu_job import gpu_query

from engines import environments, onnxruntime_cpu, ort_sessions, pages
from engines.children import Children, one_line
from engines.onnxruntime_cpu import ON_CPU, compared_versions, models_of
from engines.operator_models import FLOAT, Array, cases_by_operator
from engines.real_sizes import real_sizes
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.errors import counted
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair

NAME = "onnxruntime-cuda"
PROVIDERS = {"cuda": ort_sessions.CUDA, "cpu": ort_sessions.CPU}
FACTOR = 2.0
"""By how much the emulator's error may be off."""
NOTHING = 2.0**-20
"""An error as good as none beside FP16's, as a share of the largest output."""
CASES = 8
"""Cases of one operator whose error is measured, at most."""
SEED = 0
Outputs = Mapping[str, Array]


def measured_models() -> Iterator[tuple[str, onnx.ModelProto, dict[str, Array]]]:
    """Yield the FP32 models whose error is measured, each with its name and what is fed to it."""
    for operator in sorted(cases_by_operator()):
        for name, model, arrays in models_of(operator, FLOAT, CASES):
            yield name, model, inexact(arrays)
    yield from real_sizes()


def inexact(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return inputs a little nearer to 0: within the operator's domain, no numbers of FP16."""
    rng = np.random.default_rng(SEED)
    return {
        name: np.asarray(array * (1 - 0.01 * rng.random(array.shape)), np.float32)
        if array.dtype == np.float32
        else array
        for name, array in arrays.items()
    }


def emulated(model: Model, inputs: Mapping[str, Array]) -> tuple[float, Outputs] | None:
    """Return the error of a model all low as emulated for ONNX Runtime, and FP32's outputs.

    None where no layer can run low, or no output has a number to err in.
    """
    layers = len(model.table.names)
    if not layers:
        return None
    emulator = EmulatedBackend(model, "fp16", targets=["onnxruntime"])
    exact = emulator.evaluate(Plan.of(range(layers)), inputs)
    exact = {name: array for name, array in exact.items() if array.dtype.kind == "f"}
    if not any(np.isfinite(array).all() and np.any(array) for array in exact.values()):
        return None
    return error(emulator.evaluate(Plan.of(()), inputs), exact), exact


def compared(path: Path, inputs: Mapping[str, Array], provider: Any) -> dict[str, float] | str:
    """Return the error of a model all low, emulated and of the kernel; {} where it has none.

    In words why it does not run.
    """
    ort.set_default_logger_severity(4)
    if provider != ort_sessions.CPU:
        ort.preload_dlls()
    try:
        model = load_model(path)
        prediction = emulated(model, inputs)
        if prediction is None:
            return {}
        typed = path.with_suffix(".typed.onnx")
        save_typed(TypedWriter(model, Pair(low="fp16", high="fp32")).write(Plan.of(())), typed)
        session = ort.InferenceSession(str(typed), providers=[provider])
        names = [output.name for output in session.get_outputs()]
        outputs = dict(zip(names, session.run(names, dict(inputs)), strict=True))
    except Exception as failed:  # whatever a part raises is what came of it
        return one_line(f"{type(failed).__name__}: {failed}")
    figures = {"emulated": prediction[0], "real": error(outputs, prediction[1])}
    return {name: float(f"{figure:.3g}") for name, figure in figures.items()}


def agrees(row: Mapping[str, float]) -> bool:
    """Tell whether the emulator's error is within the factor of the kernel's, or both are none."""
    low, high = sorted((row["emulated"], row["real"]))
    return bool(high <= max(FACTOR * low, NOTHING) or low == high)


def with_emulator(table: pages.Data) -> dict[str, Any]:
    """Return the table with what the emulator says now, and the errors that were measured."""
    rows = {name: dict(by_version) for name, by_version in table["emulator"].items()}
    with tempfile.TemporaryDirectory() as place:
        for name, model, inputs in measured_models():
            measured = {
                v: row for v, row in rows.get(name, {}).items() if not isinstance(row, str)
            }
            if not measured:
                continue
            onnx.save(model, path := Path(place) / "model.onnx")
            prediction = emulated(load_model(path), inputs)
            if prediction is None:
                raise ValueError(f"{name}: nothing to emulate any more; measure it again")
            figure = float(f"{prediction[0]:.3g}")
            rows[name] |= {v: {**row, "emulated": figure} for v, row in measured.items()}
    return {**table, "emulator": rows}


def errors(provider: str) -> dict[str, Any]:
    """Return by model what the version that is installed errs by."""
    children = Children(60)
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        for name, model, inputs in measured_models():
            path = Path(place) / f"{name}.onnx"
            onnx.save(model, path)
            answer = children.call(compared, path, inputs, PROVIDERS[provider])
            if answer:
                rows[name] = answer
    return rows


def data(provider: str, oldest: Path | None) -> dict[str, Any]:
    """Return the whole table."""
    sites = [oldest, None] if oldest else [None]
    words = ("engines.onnxruntime_cuda", "--errors", "--provider", provider)
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor() as pool:
        printed = pool.map(lambda site: environments.run_module(None, *words, site=site), sites)
        folder = Path(place)
        expected = onnxruntime_cpu.write_models(folder)
        answers = pool.map(
            lambda site: onnxruntime_cpu.run_sessions(folder, None, provider, site=site), sites
        )
        table = onnxruntime_cpu.by_version("onnxruntime-gpu", [*answers], expected)
        errors_by_site = [json.loads(text.splitlines()[-1]) for text in printed]
    emulator: dict[str, dict[str, Any]] = {}
    for rows, version in zip(errors_by_site, compared_versions(table), strict=True):
        for name, row in rows.items():
            emulator.setdefault(name, {})[version] = row
    gpus = sorted({name.partition(",")[0] for name in gpu_query("name") or ["no GPU"]})
    return {**table, "gpus": gpus, "emulator": emulator}


def page(table: pages.Data) -> str:
    """Return the page."""
    lines = pages.heading("What ONNX Runtime does on CUDA", table, "onnxruntime_cuda")
    lines += [
        f"On {', '.join(table['gpus'])}, TF32 off. Each operator alone, without optimisation."
        " *Kernel*: CUDA's, in the file's type."
        f" *{ON_CPU[0].upper()}{ON_CPU[1:]}*: no kernel."
        " *In pieces*: as its definition. *Newer*: than this version knows."
        " A dash: no such form or case.",
        "",
        *onnxruntime_cpu.two_entries(table),
        *onnxruntime_cpu.operators_by_version(table),
        *_emulator_section(table),
        *onnxruntime_cpu.fusions_by_version(table),
    ]
    return "\n".join(lines)


def _emulator_section(table: pages.Data) -> list[str]:
    """Return how often the emulator's error is the kernel's, and where it is not."""
    *_, newest = compared_versions(table)
    rows = {name: row[newest] for name, row in table["emulator"].items() if newest in row}
    measured = {name: row for name, row in rows.items() if not isinstance(row, str)}
    operators = {name.partition("-")[0] for name in measured}
    apart = {name: row for name, row in measured.items() if not agrees(row)}
    lines = [
        "## The emulator beside these kernels",
        "",
        f"All low in FP16, {len(measured)} models of {len(operators)} operators: its error, a"
        f" share of the largest output, is within a factor of {FACTOR:g} in"
        f" {len(measured) - len(apart)}. Not in:",
        "",
    ]
    cells = [
        (name, f"{row['emulated']:.2g}", f"{row['real']:.2g}", _ran(table, name))
        for name, row in apart.items()
    ]
    lines += pages.table(("model", "emulated", "real", "ran"), cells)
    lines += [
        "*In FP32*: no FP16 form. On the CPU, FP32 inputs stay unrounded.",
        "",
    ]
    lines += _between_versions(table)
    refused = {name.partition("-")[0] for name, row in rows.items() if isinstance(row, str)}
    if refused:
        lines += [f"{counted(len(refused), 'operator')} had a file that fails.", ""]
    return lines


def _ran(table: pages.Data, name: str) -> str:
    """Return where the operator of a model runs in FP16, by its row of the table."""
    *_, newest = compared_versions(table)
    status = table["operators"][name.partition("-")[0]]["types"].get(f"FP16 {newest}", "-")
    word = onnxruntime_cpu.first_words(status)
    return "in FP32" if word in ("-", "newer") else word


def _between_versions(table: pages.Data) -> list[str]:
    """Return the models whose error differs between versions by more than the factor."""
    versions = compared_versions(table)
    cells = []
    for name, by_version in table["emulator"].items():
        rows = [by_version.get(version, "") for version in versions]
        real = [row["real"] for row in rows if not isinstance(row, str)]
        if len(real) == len(versions) > 1 and not agrees({"emulated": real[0], "real": real[-1]}):
            cells.append((name, *(f"{figure:.2g}" for figure in real)))
    if not cells:
        return []
    return pages.table(("model, by version", *versions), cells)


def main() -> None:
    """Write the table, or print what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--provider", choices=[*PROVIDERS], default="cuda")
    parser.add_argument("--oldest", type=Path, help="a folder with an older onnxruntime-gpu")
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--emulator", action="store_true")
    arguments = parser.parse_args()
    if arguments.errors:
        print(json.dumps(errors(arguments.provider)))
        return
    if arguments.emulator:
        table = with_emulator(pages.read(NAME))
        pages.write(NAME, table, page(table))
        return
    made = data(arguments.provider, arguments.oldest)
    if arguments.provider == "cpu":
        print(json.dumps(made, indent=1))
    else:
        pages.write(NAME, made, page(made))


if __name__ == "__main__":
    main()
