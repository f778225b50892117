"""From a model in PyTorch to the modules that it keeps, and back into PyTorch."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import precision_bisect
from precision_bisect.exports.one_file import one_file
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.load import load_model
from precision_bisect.runs.results.certificates import Uncertified
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.runfolder import MIXED_MODEL, TORCH_AUTOCAST

pytestmark = pytest.mark.models
pytest.importorskip("onnxscript", reason="pip install --group models")
networks: Any = pytest.importorskip("torch_networks", reason="pip install --group models")
torch: Any = networks.torch
TOLERANCE = 1e-2
KEPT = {"vit": ["blocks.1.norm2", "blocks.2.norm2"], "unet": ["gate"], "detector": ["decode"]}
"""Where each network overflows."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what searches a network that one of the exporters has written, once."""
    found: dict[tuple[str, bool], Result] = {}

    def run(name: str, dynamo: bool) -> Result:
        if (name, dynamo) not in found:
            folder = tmp_path_factory.mktemp(name)
            model = networks.exported(name, folder / "model.onnx", dynamo=dynamo)
            found[name, dynamo] = precision_bisect.find(
                model, tol=TOLERANCE, inputs=networks.samples(name), out=folder / "run"
            )
        return found[name, dynamo]

    return run


every = pytest.mark.parametrize("name", networks.NETWORKS)
both = pytest.mark.parametrize("dynamo", [False, True], ids=["torchscript", "dynamo"])


@every
@both
def test_the_modules_that_overflow_are_told(runs: Any, name: str, dynamo: bool) -> None:
    """The answer as whole modules is that of the planted places, judged and minimal."""
    result = runs(name, dynamo)
    told = result.by_modules
    assert KEPT[name] == list(told.names)
    assert told.minimal and told.error <= TOLERANCE and told.layers >= len(result.kept) > 0
    named = {name for name, _ in networks.network(name).named_modules()}
    assert {*told.names, *result.modules.values()} <= named


@every
@both
def test_half_networks_are_searched_in_fp32(name: str, dynamo: bool, tmp_path: Path) -> None:
    """The FP32 form of `.half()` gives what PyTorch does with its weights, and the same answer."""
    path = networks.exported(name, tmp_path / "half.onnx", dynamo=dynamo, half=True)
    given = [{"x": sample["x"].astype(np.float16)} for sample in networks.samples(name)]
    model = load_model(path)
    (found,) = reference_outputs(model, [{"x": given[0]["x"].astype(np.float32)}])
    with torch.no_grad():
        expected = networks.network(name).half().float()(torch.from_numpy(given[0]["x"]).float())
    computed = [expected] if isinstance(expected, torch.Tensor) else expected
    for output, wanted in zip(found.values(), computed, strict=True):
        np.testing.assert_allclose(wanted.numpy(), output, atol=1e-3 * np.abs(output).max())
    result = precision_bisect.find(path, tol=TOLERANCE, inputs=given, out=tmp_path / "run")
    assert result.by_modules is not None
    assert KEPT[name] == list(result.by_modules.names)
    assert result.fp32_form is not None
    assert ["fp16"] == result.fp32_form.types and result.fp32_form.overflowing
    assert [10] == [
        value.type.tensor_type.elem_type
        for value in onnx.load(tmp_path / "run" / MIXED_MODEL).graph.input
    ]


@every
def test_both_exporters_give_one_tree(name: str, tmp_path: Path) -> None:
    """What computes is in the same modules, whoever has exported it; and they are the model's."""
    found = []
    for dynamo in (False, True):
        path = networks.exported(name, tmp_path / f"{dynamo}.onnx", dynamo=dynamo)
        layers = precision_bisect.layers(path)
        found.append({layer.module for layer in layers if layer.exclusion is None})
    assert found[0] == found[1]
    assert found[0] <= {name for name, _ in networks.network(name).named_modules()}


@every
@both
def test_pytorch_holds_with_the_modules_kept(runs: Any, name: str, dynamo: bool) -> None:
    """With low weights and under autocast the script's modules bring the error below the limit."""
    script = _loaded(runs(name, dynamo).out / TORCH_AUTOCAST)
    model = networks.network(name)
    low = script.lowered(model)
    kept = script.keep_float32(networks.network(name))
    for sample in networks.samples(name):
        x = torch.from_numpy(sample["x"])
        with torch.no_grad():
            wanted, found = model(x), low(x.half())
            broken = networks.network(name).half()(x.half())
            with torch.autocast("cpu", torch.float16):
                cast = kept(x)
        assert not _holds(broken, wanted)
        assert _holds(found, wanted)
        assert _holds(cast, wanted)


@every
def test_torch_tensorrt_is_told_the_same_nodes(runs: Any, name: str) -> None:
    """Its patterns match, as Torch-TensorRT matches them, the nodes inside the modules alone.

    It takes the name of the innermost module of a node from torch.export
    (py/torch_tensorrt/dynamo/lowering/passes/nodeclassifier.py).
    """
    script = _loaded(runs(name, True).out / TORCH_AUTOCAST)
    x = torch.from_numpy(networks.samples(name)[0]["x"])
    graph = torch.export.export(networks.network(name), (x,)).graph
    stacks = {
        node.name: [told[0] for told in node.meta["nn_module_stack"].values()]
        for node in graph.nodes
        if node.op == "call_function"
    }
    inside = {node for node, stack in stacks.items() if {*stack} & {*script.KEPT}}
    assert 0 < len(inside) < len(stacks)
    assert inside == {
        node
        for node, stack in stacks.items()
        if any(re.match(pattern, stack[-1]) for pattern in script.EXCLUDED_NODES)
    }


def test_what_low_types_cannot_hold_goes_from_one_module_to_the_next(tmp_path: Path) -> None:
    """Between two kept modules nothing is rounded; behind them it is, in nested outputs, too."""
    text = one_file(TORCH_AUTOCAST, {"KEPT: tuple[str, ...] = ()\n": "('0', '1')"})
    (tmp_path / "kept.py").write_text(text)
    script = _loaded(tmp_path / "kept.py")

    class Scale(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, given: Any) -> Any:
            return {"x": given["x"] * self.factor, "rest": (given["rest"], None)}

    model = script.lowered(torch.nn.Sequential(Scale(1e6), Scale(1e-6)))
    given = {"x": torch.ones(2, dtype=torch.float16), "rest": torch.arange(2)}
    found = model(given)
    assert found["x"].dtype == torch.float16 and found["x"].tolist() == [1.0, 1.0]
    assert found["rest"][0][0] is given["rest"]
    with pytest.raises(AttributeError):
        script.keep_float32(torch.nn.Identity())


@both
def test_norms_that_are_put_together_stay_in_their_modules(tmp_path: Path, dynamo: bool) -> None:
    """A fused operator is in the module that its pieces were in."""
    model = networks.exported("vit", tmp_path / "model.onnx", dynamo=dynamo)
    options = {"inputs": networks.samples("vit"), "out": tmp_path / "run", "fuse_norms": True}
    assert not precision_bisect.find(model, tol=TOLERANCE, **options).kept
    fused = precision_bisect.layers(tmp_path / "run" / "model.fused.onnx")
    norms = [each.module for each in fused if each.op_type == "RMSNormalization"]
    assert [f"blocks.{block}.norm2" for block in range(3)] == norms


@both
def test_a_search_by_modules_ends_with_whole_ones(tmp_path: Path, dynamo: bool) -> None:
    """Its answer is all layers of modules, none of which can be dropped, whatever the strategy."""
    model = networks.exported("unet", tmp_path / "model.onnx", dynamo=dynamo)
    inside = {
        each.name
        for each in precision_bisect.layers(model)
        if each.exclusion is None and each.module == "gate"
    }
    for strategy in ("guided", "hierarchical", "ddmin"):
        result = precision_bisect.find(
            model,
            tol=TOLERANCE,
            inputs=networks.samples("unet"),
            out=tmp_path / strategy,
            by="module",
            strategy=strategy,
        )
        assert inside == {*result.kept}
        assert result.by_modules is not None and result.by_modules.minimal
        assert Uncertified.MODULES is result.certificate.uncertified


def _holds(found: Any, wanted: Any) -> bool:
    one = isinstance(wanted, torch.Tensor)
    pairs = [(found, wanted)] if one else zip(found, wanted, strict=True)
    return all(
        np.allclose(got.float().numpy(), right.numpy(), TOLERANCE, TOLERANCE)
        for got, right in pairs
    )


def _loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("kept_modules", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
