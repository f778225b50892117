"""Cases that people reported: every list says the whole plan, and AutoCast's model is as good."""

import ast
from collections.abc import Mapping
from pathlib import Path

import autocast_env
import numpy as np
import onnx
import pytest

from exports_models import SHELLS, autocast_selects, export_of, flag, run_script
from field_cases import FIELD_CASES, FieldCase
from models import save
from precision_bisect.exports.autocast import write_autocast
from precision_bisect.exports.write import write_exports
from precision_bisect.runs.runfolder import (
    AUTOCAST,
    LAYER_PRECISIONS,
    MIXED_MODEL,
    POLYGRAPHY_SCRIPT,
    RunFolder,
)
from trtexec_oracle import trtexec_parse
from zoo.judge import Run, error, evaluator, plain

CASTS = ("cast", "back")
"""Of these TensorRT need not be told: their type is their meaning."""


def exported(case: FieldCase, folder: Path) -> dict[str, str | None]:
    """Write the model of a case and all exports of its plan; return why some are missing."""
    path = save(case.model, folder)
    return dict(write_exports(RunFolder(folder), export_of(path, case.kept)))


def in_order(case: FieldCase, names: set[str]) -> list[str]:
    """Return these nodes in network order."""
    return [node.name for node in case.model.graph.node if node.name in names]


@pytest.mark.parametrize("name", FIELD_CASES)
def test_every_list_has_the_nodes_between_and_behind(name: str, tmp_path: Path) -> None:
    """The lists are those of the typed model: its FP32 tensors, and who reads or writes them."""
    case = FIELD_CASES[name]()
    reasons = exported(case, tmp_path)
    nodes = [node.name for node in case.model.graph.node]
    high = {*case.kept, *case.along}
    listed = autocast_selects((tmp_path / AUTOCAST).read_text("ascii"), nodes)
    assert high - listed == high.intersection(["cast"])
    script = ast.parse((tmp_path / POLYGRAPHY_SCRIPT).read_text("ascii"))
    told = {}
    for node in script.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            told[node.target.id] = ast.literal_eval(node.value)
    assert in_order(case, {*case.kept}) == list(told["KEPT"])
    others = [name for name in told["WITH_THEM"] if name not in CASTS]
    assert in_order(case, {*case.along} - {*CASTS}) == others
    if reasons[LAYER_PRECISIONS] is None:
        weak = run_script(tmp_path, "weak", SHELLS[0])
        by_name = trtexec_parse(flag(weak, "--layerPrecisions"), "--layerPrecisions")
        assert in_order(case, high - {*CASTS}) == list(by_name)


def test_sizes_in_floats_are_not_told_to_trtexec(tmp_path: Path) -> None:
    """Where only shape arithmetic is high, trtexec needs no names, and would fail by them."""
    reasons = exported(FIELD_CASES["sizes in floats"](), tmp_path)
    assert "no layer is kept" == reasons[LAYER_PRECISIONS]
    arguments = run_script(tmp_path, "weak", SHELLS[0]).arguments
    assert "--fp16" in arguments
    assert not [word for word in arguments if word.startswith("--layer")]


def worst(case: FieldCase, run: Run, reference: Run) -> float:
    """Return the largest error on the samples of a case."""
    return max(error(run(sample), reference(sample), "tol") for sample in case.samples)


@pytest.mark.parametrize("name", FIELD_CASES)
def test_the_plan_holds(name: str, tmp_path: Path) -> None:
    """The typed model is within the tolerance; all low is not, unless nothing is to be kept."""
    case = FIELD_CASES[name]()
    exported(case, tmp_path)
    reference = plain(tmp_path / "model.onnx")
    assert worst(case, evaluator(tmp_path / MIXED_MODEL), reference) < case.tolerance
    low = tmp_path / "low"
    write_exports(RunFolder(low), export_of(tmp_path / "model.onnx", []))
    held = worst(case, evaluator(low / MIXED_MODEL), reference) < case.tolerance
    assert (case.kept == []) == held


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Return a folder per case, with AutoCast's models by the list and by the layers alone."""
    if autocast_env.python() is None:
        pytest.skip("no AutoCast; make it: python benchmarks/autocast_env.py")
    folders, jobs = {}, []
    for name, make in FIELD_CASES.items():
        case, folder = make(), tmp_path_factory.mktemp("case")
        exported(case, folder)
        lists = {"list": (folder / AUTOCAST).read_text(), "alone": write_autocast(case.kept)}
        for kind, text in lists.items():
            model, out = folder / "model.onnx", folder / f"{kind}.onnx"
            jobs.append(autocast_env.arguments(model, out, text.split()))
        folders[name] = folder
    assert {""} == set(autocast_env.convert(jobs))
    return folders


@pytest.mark.autocast
@pytest.mark.parametrize("name", FIELD_CASES)
def test_autocast_by_the_list_is_as_good_as_the_typed_model(
    name: str, converted: Mapping[str, Path]
) -> None:
    """ModelOpt AutoCast, given the list, writes a model with the error of model.mixed.onnx."""
    case, folder = FIELD_CASES[name](), converted[name]
    onnx.checker.check_model(folder / "list.onnx", full_check=True)
    reference = plain(folder / "model.onnx")
    typed = worst(case, evaluator(folder / MIXED_MODEL), reference)
    assert worst(case, evaluator(folder / "list.onnx"), reference) == pytest.approx(typed)


@pytest.mark.autocast
@pytest.mark.parametrize("name", FIELD_CASES)
def test_autocast_by_the_layers_alone_fails(name: str, converted: Mapping[str, Path]) -> None:
    """The cases show what they are for: without the nodes between, the result is wrong."""
    case, folder = FIELD_CASES[name](), converted[name]
    found = worst(case, evaluator(folder / "alone.onnx"), plain(folder / "model.onnx"))
    assert np.isinf(found) or found > 10 * case.tolerance
