"""Lone products by way of AutoCast: what its models lose on TensorRT-RTX is said."""

from collections.abc import Mapping
from pathlib import Path

import autocast_env
import onnx
import pytest

from exports_models import export_of
from lone_islands import ISLANDS
from models import save
from precision_bisect.exports.autocast import autocast_exclude, autocast_remark
from precision_bisect.exports.export import Export
from rtx import build_bytes

CARRIED = {
    name: island
    for name, island in ISLANDS.items()
    if not island.half and "the file's own" not in name and "If" not in name
}
"""Those whose model is FP32 from end to end, and of which the list says which layer is kept."""


def exported(name: str, folder: Path) -> Export:
    """Return the export of an island's plan, whose model it saves."""
    proto = CARRIED[name].proto()
    kept = [node.name for node in proto.graph.node if node.name.startswith("k")]
    return export_of(save(proto, folder, "fp32.onnx"), kept)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Return a folder by island, with AutoCast's model by the exported list."""
    if autocast_env.python() is None:
        pytest.skip("python benchmarks/autocast_env.py")
    folders = {name: tmp_path_factory.mktemp("autocast") for name in CARRIED}
    jobs = []
    for name, folder in folders.items():
        patterns = autocast_exclude(exported(name, folder)).split()
        jobs.append(autocast_env.arguments(folder / "fp32.onnx", folder / "out.onnx", patterns))
    assert [""] * len(jobs) == autocast_env.convert(jobs)
    return folders


@pytest.mark.autocast
@pytest.mark.parametrize("name", CARRIED)
def test_what_is_lost_is_said(name: str, converted: Mapping[str, Path]) -> None:
    """Where an engine lacks FP32 weights, the remark names the layer that reads them."""
    folder = converted[name]
    lost = CARRIED[name].lost(build_bytes(folder / "out.onnx"))
    remark = autocast_remark(exported(name, folder))
    readers = [
        node.name
        for node in onnx.load(folder / "fp32.onnx").graph.node
        if {*lost}.intersection(node.input)
    ]
    assert readers[:1] == [each for each in readers if f" {each} " in remark]


@pytest.mark.parametrize(
    ("name", "layer"),
    [("Conv of two", "k"), ("two products", "k0"), ("at the start", None)],
)
def test_the_remark_is_of_lone_products(tmp_path: Path, name: str, layer: str | None) -> None:
    """What reads FP32 needs no remark."""
    remark = autocast_remark(exported(name, tmp_path))
    said = f"autocast-exclude.txt: TensorRT-RTX runs {layer} of AutoCast's model in FP16"
    assert remark.startswith(said) if layer else remark == ""
