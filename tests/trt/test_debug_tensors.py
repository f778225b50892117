"""Engines that show their unfused tensors are the same engines, and what they hand over."""

import ctypes
from pathlib import Path

import onnx
import pytest

import models
from precision_bisect.backends.inspection.engine_layers import parse_layers
from precision_bisect.backends.inspection.shown_tensors import written_by_kernels
from precision_bisect.backends.tensorrt.debug_tensors import address_of, can_show
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.typed.model_files import TypedFolder
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from rtx import build, trt

BLOCKS = """(float[1, 8, 16, 16] x) => (float[1, 8, 4, 4] y)
        <float[8, 8, 3, 3] w, float[8, 8, 3, 3] v> {
    [first] a = Conv <pads = [1, 1, 1, 1]> (x, w)
    [relu] b = Relu (a)
    [pool] c = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (b)
    [second] d = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (c, v)
    [tanh] y = Tanh (d)
}"""


def low_graph(folder: Path) -> Path:
    """Write a small network with every layer in FP16."""
    weights = {name: models.normal(8, 8, 3, 3, seed=seed) for seed, name in enumerate("wv")}
    model = load_model(models.save(models.with_weights(models.parse(BLOCKS), weights), folder))
    typed = TypedWriter(model, Pair(low="fp16", high="fp32")).write(
        Plan.of(()), guard_islands=True
    )
    return TypedFolder(folder).save(typed, "low.onnx")


@pytest.mark.parametrize("target", ["SM86", "SM89", "SM120"])
def test_what_is_shown_is_the_same_engine(tmp_path: Path, target: str) -> None:
    """Marking fuses nothing otherwise: the builder says the same of every layer."""
    path = low_graph(tmp_path)
    assert build(path, target=target) == build(path, target=target, shown=True)


def test_the_tensor_of_a_kernel_is_what_its_last_node_makes(tmp_path: Path) -> None:
    """The builder calls the input of a kernel by what the kernel makes: names would mislead."""
    path = low_graph(tmp_path)
    graph = onnx.load(path, load_external_data=False).graph
    written = written_by_kernels(parse_layers(build(path, shown=True)), graph)
    by_tensor = {tensors.tensors: name for name, tensors in written.items()}
    assert {("b",), ("c",)} <= by_tensor.keys()
    # "c..." holds what MaxPool reads, as "d..." or "y..." holds what it makes.
    assert by_tensor["b",].startswith("c.1")
    assert not by_tensor["c",].startswith("c")


def test_an_address_comes_in_a_capsule() -> None:
    """TensorRT's bindings declare one; a number is taken as well."""
    assert "addr: typing_extensions.CapsuleType" in trt.IDebugListener.process_debug_tensor.__doc__
    buffer = ctypes.create_string_buffer(8)
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    address = ctypes.addressof(buffer)
    assert [address, address] == [address_of(make(address, None, None)), address_of(address)]


def test_the_library_can_show_tensors() -> None:
    """What `--rank-by engine` asks of a library is there under these names."""
    assert can_show(trt)
