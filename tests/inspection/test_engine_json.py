"""The inspector's JSON, of every schema that TensorRT has had since 8.6."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from precision_bisect.backends.inspection.engine_layers import (
    EngineLayer,
    EngineTensor,
    normal_type,
    parse_json,
)
from precision_bisect.backends.tensorrt.layer_times import facts_of
from precision_bisect.runs.results.verification import EngineFacts

CHANNELS_LAST = "Channel major FP16 format where channel % 8 == 0"
TENSORRT_8 = """{"Layers": [{
  "Name": "Reformatting CopyNode for Input Tensor 0 to /stem/Conv + /stem/Relu",
  "LayerType": "Reformat",
  "Inputs": [{"Name": "x", "Location": "Device", "Dimensions": [1,3,8,8],
    "Format/Datatype": "Row major linear FP32"}],
  "Outputs": [{"Name": "Reformatted Input Tensor 0", "Location": "Device", "Dimensions": [1,3,8,8],
    "Format/Datatype": "Channel major FP16 format where channel % 8 == 0"}],
  "ParameterType": "Reformat", "Origin": "REFORMAT", "TacticValue": "0x0000000000000000",
  "Metadata": ""
},{
  "Name": "/stem/Conv + /stem/Relu [profile 0]",
  "LayerType": "CaskConvolution",
  "Inputs": [{"Name": "Reformatted Input Tensor 0", "Location": "Device", "Dimensions": [1,3,8,8],
    "Format/Datatype": "Channel major FP16 format where channel % 8 == 0"}],
  "Outputs": [{"Name": "y", "Location": "Device", "Dimensions": [1,4,8,8],
    "Format/Datatype": "Channel major FP16 format where channel % 8 == 0"}],
  "ParameterType": "Convolution", "Kernel": [3,3], "Groups": 1,
  "Weights": {"Type": "Half", "Count": 108}, "Bias": {"Type": "Half", "Count": 4},
  "Activation": "RELU", "HasBias": 1,
  "TacticName": "sm80_xmma_fprop_implicit_gemm_f16f16_f16f16_f16_nhwckrsc_nhwc",
  "TacticValue": "0x0866ddee325d07a6",
  "Metadata": "[ONNX Layer: /stem/Conv]\x1e[ONNX Layer: /stem/Relu]"
},{
  "Name": "{ForeignNode[/attention/MatMul.../attention/Softmax]}",
  "LayerType": "Myelin",
  "Inputs": [{"Name": "y", "Location": "Device", "Dimensions": [-1,4],
    "Format/Datatype": "N/A due to dynamic shapes"}],
  "Outputs": [{"Name": "z", "Location": "Device", "Dimensions": [-1,4],
    "Format/Datatype": "Half"}],
  "TacticValue": "0x0000000000000000",
  "Metadata": "[ONNX Layer: /attention/MatMul]\x1e[ONNX Layer: /attention/Softmax]"
}],
"Bindings": ["x", "z"]}"""
TENSORRT_11 = {
    "Layers": [
        {
            "Name": "fc_myl0_1",
            "LayerType": "gemm",
            "Inputs": [
                {
                    "Name": "x",
                    "Dimensions": [8, 64],
                    "Strides": [64, 1],
                    "Datatype": "Float",
                    "Format": "(Linear) Row major linear format",
                }
            ],
            "Constants": [
                {"Name": "w_constantFloat_myl0", "Dimensions": [64, 32], "Datatype": "Float"}
            ],
            "Outputs": [{"Name": "y", "Dimensions": [8, 32], "Datatype": "BFloat16"}],
            "TacticName": "sm80_xmma_gemm_f32f32_tf32f32_f32",
            "StreamId": 0,
            "Metadata": "[ONNX Layer: fc]\x1f[ONNX Layer: cast]",
        }
    ],
    "I/O Tensors": [{"Name": "x", "IOMode": "Input", "DataType": "Float", "Dimensions": [8, 64]}],
    "Engine Metadata": {"Multi-Device": "Disabled"},
}


def test_tensorrt_8_to_10() -> None:
    """Joined types and layouts, weights as counts, fused and foreign layers are read."""
    copy, conv, foreign = parse_json(TENSORRT_8)
    assert ("fp32", "fp16", ()) == (copy.inputs[0].dtype, copy.outputs[0].dtype, copy.nodes)
    assert EngineFacts(size=9, layers=3, conversions=1, casting=0) == facts_of(
        9, [copy, conv, foreign]
    )
    assert facts_of(9, []) is None
    channels_last = EngineTensor(name="y", dtype="fp16", dims=(1, 4, 8, 8))
    assert (
        EngineLayer(
            name="/stem/Conv + /stem/Relu",
            kind="CaskConvolution",
            inputs=(
                EngineTensor(
                    name="Reformatted Input Tensor 0",
                    dtype="fp16",
                    dims=(1, 3, 8, 8),
                ),
            ),
            outputs=(channels_last,),
            constants=(
                EngineTensor(name="Weights", dtype="fp16", dims=(108,)),
                EngineTensor(name="Bias", dtype="fp16", dims=(4,)),
            ),
            tactic="sm80_xmma_fprop_implicit_gemm_f16f16_f16f16_f16_nhwckrsc_nhwc",
            nodes=("/stem/Conv", "/stem/Relu"),
        )
        == conv
    )
    assert ("Myelin", "", "fp16") == (
        foreign.kind,
        foreign.inputs[0].dtype,
        foreign.outputs[0].dtype,
    )
    assert ("/attention/MatMul", "/attention/Softmax") == foreign.nodes


def test_tensorrt_11() -> None:
    """Split types and layouts and listed constants are read."""
    (layer,) = parse_json(json.dumps(TENSORRT_11))
    assert ("fp32", "bf16") == (layer.inputs[0].dtype, layer.outputs[0].dtype)
    assert (
        EngineTensor(name="w_constantFloat_myl0", dtype="fp32", dims=(64, 32)),
    ) == layer.constants
    assert ("fc", "cast") == layer.nodes


def test_names_only() -> None:
    """An engine without detailed profiling lists names, once per profile."""
    text = '{"Layers": ["conv1 + relu1", "conv1 + relu1 [profile 1]"], "Bindings": ["x"]}'
    assert [EngineLayer(name="conv1 + relu1")] * 2 == parse_json(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Half", "fp16"),
        ("Float", "fp32"),
        ("BFloat16", "bf16"),
        ("Row major linear FP16 format", "fp16"),
        ("Two wide channel vectorized row major FP16 format", "fp16"),
        ("Thirty-two wide channel vectorized row major Int8 format", "int8"),
        ("Half(64,1:8,...)", "fp16"),
        ("Bool", "bool"),
        ("E4M3 FP8", "fp8"),
        ("N/A due to dynamic shapes", ""),
        ("", ""),
    ],
)
def test_words_for_types(text: str, expected: str) -> None:
    """A type is found in whatever words a library puts around it."""
    assert expected == normal_type(text)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "Layers",
                    "Name",
                    "Inputs",
                    "Constants",
                    "Weights",
                    "Dimensions",
                    "Type",
                    "Metadata",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(values)
@examples(15)
def test_any_json_gives_layers(value: Any) -> None:
    """JSON of any other shape gives the layers that can be read, or none."""
    for text in (json.dumps(value), json.dumps({"Layers": value}), json.dumps(value)[:-1]):
        assert all(isinstance(layer, EngineLayer) for layer in parse_json(text))


def test_json_that_nests_too_deep() -> None:
    """A text that no parser can follow has no layers."""
    assert [] == parse_json("[" * 100_000)
