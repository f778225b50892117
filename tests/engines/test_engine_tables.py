"""The tables of docs/engines: pages are those of their data, and the tool agrees with them."""

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx
import pytest
from engines.children import Children
from engines.onnxruntime_cpu import first_words

from engines import converters, exporters, onnxruntime_cpu, onnxruntime_cuda, pages, rewriters
from precision_bisect.backends.tensorrt.flavour import WITHOUT_KERNEL
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.lowtypes import BF16, FP16, LowType
from precision_bisect.graphs.quantization.calibration import QUANTIZABLE
from precision_bisect.graphs.typed.layout import NOT_PARSED, NoLowForm, low_form
from precision_bisect.settings.targets import Inside, inside, low_kernels, parser_steps

TABLES = (onnxruntime_cpu, onnxruntime_cuda, converters, rewriters, exporters)
NAMES = ("tensorrt-rtx", *(table.NAME for table in TABLES))
RTX = pages.read("tensorrt-rtx")
OPERATORS: dict[str, Any] = dict(RTX["operators"])


@pytest.mark.parametrize(("name", "page"), [(table.NAME, table.page) for table in TABLES])
def test_a_page_is_made_of_its_data(name: str, page: Callable[[pages.Data], str]) -> None:
    """Nobody has edited a page, or its data, by hand."""
    made = page(pages.read(name))
    assert made == (pages.FOLDER / f"{name}.md").read_text(encoding="utf-8")


def test_the_page_of_tensorrt_rtx_is_made_of_its_data() -> None:
    """The same for the table whose module needs the library."""
    pytest.importorskip("tensorrt_rtx")
    from engines import rtx_operators

    made = rtx_operators.page(RTX)
    assert made == (pages.FOLDER / "tensorrt-rtx.md").read_text(encoding="utf-8")


def test_no_table_names_a_place_of_a_machine() -> None:
    """Data and pages have no path of where they were made."""
    for name in NAMES:
        for suffix in ("json", "md"):
            text = (pages.FOLDER / f"{name}.{suffix}").read_text(encoding="utf-8")
            assert not [place for place in ("/tmp", "/home/", "/root/", "/work") if place in text]


@pytest.mark.parametrize("low", [FP16, BF16], ids=lambda low: low.name)
def test_what_the_parser_refuses_the_tool_keeps_high(low: LowType) -> None:
    """An operator that is parsed in FP32 and in no form in a low type has no low form here."""
    label = {"fp16": "FP16", "bf16": "BF16"}[low.name]
    for operator, row in OPERATORS.items():
        if row["opsets"].get("FP32") and row["refused"].get(label) and label not in row["opsets"]:
            version = onnx.defs.onnx_opset_version()
            node = onnx.helper.make_node(operator, ["x"], ["y"])
            with pytest.raises(NoLowForm):
                low_form(node, version, low, {"x": onnx.TensorProto.FLOAT})


@pytest.mark.parametrize("low", ["fp16", "bf16"])
def test_what_the_tool_keeps_high_the_parser_refuses(low: str) -> None:
    """No operator is kept high for the parser's sake that the table has as parsed everywhere."""
    label = {"fp16": "FP16", "bf16": "BF16"}[low]
    for operator in NOT_PARSED[low]:
        row = OPERATORS[operator]
        assert row["refused"].get(label) or any("low" in form for form in row["conditions"])


def test_the_table_and_the_emulator_tell_the_same_layers() -> None:
    """Layers in FP16 are a row of what the emulator reads; what it lacks is not parsed here."""
    steps = parser_steps()
    assert steps["tensorrt_rtx"] == RTX["versions"]["tensorrt_rtx"]
    for operator, row in OPERATORS.items():
        layers = row["layers"].get("FP16")
        if layers is not None:
            assert layers in [each["layers"] for each in steps["operators"][operator]], operator
    assert not {name for name in steps["not_parsed"] if "FP16" in OPERATORS[name]["opsets"]}


def test_islands_that_would_be_lost_are_guarded() -> None:
    """What the builder turns back into half stays FP32 as the tool writes it, moves apart."""
    lost = {name for name, row in OPERATORS.items() if row["island"].get("plain") == "half"}
    assert {"MatMul", "Gemm", "Conv", "ConvTranspose"} <= lost
    # What only moves values loses nothing in half.
    moves = {name for name in lost if not OPERATORS[name]["layers"].get("FP16")}
    assert {OPERATORS[name]["island"]["ours"] for name in lost - moves} == {"fp32"}


@pytest.mark.parametrize("operator", ["MatMul", "Softmax", "Gather"])
def test_islands_are_what_is_built(operator: str) -> None:
    """One that is lost, one that stays and one that moves are built again."""
    pytest.importorskip("tensorrt_rtx")
    from engines import rtx_operators

    if metadata.version("tensorrt_rtx") != RTX["versions"]["tensorrt_rtx"]:
        pytest.skip("the table is of another version of tensorrt_rtx")
    built = rtx_operators.island_of(operator, rtx_operators.island)
    assert built == OPERATORS[operator]["island"]


@pytest.mark.parametrize("kind", ["INT8", "FP8"])
def test_what_the_tool_quantizes_is_read_in_8_bits(kind: str) -> None:
    """By the operator's own kernel; what reads floats there is pinned for TensorRT-RTX."""
    low = kind.lower()
    for name in QUANTIZABLE:
        reads = "fp32" if WITHOUT_KERNEL[low] == name else low
        assert reads == OPERATORS[name]["quantized"][kind]["before"]


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose", "MaxPool", "Add"])
def test_quantized_rows_are_what_is_built(operator: str) -> None:
    """In 8 bits, in floats, by type, and in a kernel of several operators."""
    pytest.importorskip("tensorrt_rtx")
    from engines import rtx_operators, rtx_quantized

    if metadata.version("tensorrt_rtx") != RTX["versions"]["tensorrt_rtx"]:
        pytest.skip("the table is of another version of tensorrt_rtx")
    placed = rtx_operators.placed_cases(operator)
    built = rtx_quantized.rows(operator, placed, Children(120))
    assert built == OPERATORS[operator]["quantized"]


IN_STEPS = ("GroupNormalization-real", "Softsign-real", "Gelu-by tanh", "RotaryEmbedding-4")


def test_the_emulator_errs_as_the_table_of_cuda_says(tmp_path: Path) -> None:
    """Of every measured model today's emulator is right, or wrong, as its row says.

    And to 1% where the kernel's steps are known.
    """
    table = pages.read(onnxruntime_cuda.NAME)
    *_, newest = onnxruntime_cpu.compared_versions(table)
    rows = {name: row[newest] for name, row in table["emulator"].items() if newest in row}
    left = {name: row for name, row in rows.items() if not isinstance(row, str)}
    assert len(left) > 150
    wrong = {}
    for name, model, inputs in onnxruntime_cuda.measured_models():
        row = left.pop(name, None)
        if row is None:
            continue
        onnx.save(model, tmp_path / "model.onnx")
        prediction = onnxruntime_cuda.emulated(load_model(tmp_path / "model.onnx"), inputs)
        assert prediction is not None, name
        now = {"emulated": prediction[0], "real": row["real"]}
        agrees = onnxruntime_cuda.agrees(now)
        if name in IN_STEPS:
            agrees = abs(now["emulated"] / now["real"] - 1) < 0.01
        if agrees != onnxruntime_cuda.agrees(row):
            wrong[name] = now
    assert (wrong, left) == ({}, {})


def test_what_settings_say_of_cuda_is_measured() -> None:
    """Each operator that stores something inside there has a row, unless the table's is newer."""
    table = pages.read(onnxruntime_cuda.NAME)
    *_, newest = onnxruntime_cpu.compared_versions(table)
    words = {
        name: onnxruntime_cpu.first_words(row["types"][f"FP16 {newest}"])
        for name, row in table["operators"].items()
        if inside(name, "onnxruntime") is not Inside.FP32
    }
    opened = {name for name, word in words.items() if word != "newer"}
    assert opened <= {name.partition("-")[0] for name in table["emulator"]}
    assert {"LSTM", "ReduceMean", "Elu"} <= opened


def test_our_files_are_equal_or_said_not_to_be() -> None:
    """What this tool writes of an operator opens, runs, and is within 1% of FP32."""
    rows = pages.read(converters.NAME)["operators"]
    assert {name for name, row in rows.items() if row[converters.OURS] != "equal"} == set()


def test_mixed_files_keep_their_meaning_through_rewriters() -> None:
    """No rewriter makes of a mixed file one that does not open, or computes something else."""
    rows = pages.read(rewriters.NAME)["operators"]
    words = {word for row in rows.values() for word in row.values()}
    assert words <= {"kept", "gone", "guard gone"}


@pytest.mark.parametrize("operator", ["Add", "Clip", "Softmax", "LeakyRelu", "Sign"])
def test_the_table_of_onnxruntime_is_what_runs(operator: str) -> None:
    """A kernel, Casts, pieces: an operator of each is run again, where the version is the same."""
    version = metadata.version("onnxruntime")
    row = pages.read(onnxruntime_cpu.NAME)["operators"][operator]["types"]
    if f"FP16 {version}" not in row:
        pytest.skip("the table is of other versions of onnxruntime")
    found = onnxruntime_cpu.status_of(operator, "FP16")
    assert found == row[f"FP16 {version}"]


ELSEWHERE = {
    "fp16": {
        "Dropout": "removed from every graph that infers",
        "GRU": "on CUDA where linear_before_reset is 1, as PyTorch writes it",
        "OneHot": "measured in its form of opset 28, which no release knows",
        "AffineGrid": "taken apart: of its pieces few are on the CPU",
        "GroupNormalization": "likewise",
        "CenterCropPad": "likewise",
    },
    "bf16": {
        "Dropout": "removed from every graph that infers",
        "AffineGrid": "taken apart",
        "GroupNormalization": "likewise",
    },
}
"""What the table has on the CPU, and why it may run low all the same."""


@pytest.mark.parametrize("low", ["fp16", "bf16"])
def test_what_is_pinned_for_onnx_runtime_is_what_was_measured(low: str) -> None:
    """At the newest opset: those with a last opset have no kernel, those without one have."""
    table = pages.read(onnxruntime_cuda.NAME)
    *_, newest = onnxruntime_cpu.compared_versions(table)
    rows, lacking = low_kernels()["opsets"][low], set()
    for operator, row in table["operators"].items():
        fp32, half = (
            first_words(row["types"].get(f"{t} {newest}", "")) for t in ("FP32", low.upper())
        )
        if fp32 in ("kernel", "on the CPU") and half in ("refused", "on the CPU"):
            lacking.add(operator)
        elif rows.get(operator) is not None:
            assert "kernel" == fp32 == half, operator
    without = {name for name, opsets in rows.items() if opsets is None or opsets[1] is not None}
    assert lacking == without | ELSEWHERE[low].keys()
