"""Models of one operator each whose kernels have work to do: ONNX's own cases are small."""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx

from engines.operator_models import HEADS, IMAGE, REAL_SIZES, ROWS, Array, text_model
from models import parse

SEED = 1
SMALL = 0.1
"""What weights are scaled by, `w` and `r`."""
OPSET, NEWER = 20, 23
"""Before opset 22, many of whose forms have no kernel on CUDA; for the operators that need it."""
OF_NEWER = ("Attention", "GroupNormalization", "RotaryEmbedding")
GROUPED = "2,2,128,64"
_LSTM = {"w": "1,128,16", "r": "1,128,32", "b": "1,256"}
_TWO_WAYS = {"w": "2,128,16", "r": "2,128,32", "b": "2,256"}
_GRU = {"w": "1,96,16", "r": "1,96,32", "b": "1,192"}
_RNN = {"w": "1,32,16", "r": "1,32,32", "b": "1,64"}
_STEPS = "12,4,16"
KERNELS: Mapping[str, str] = {
    "LSTM-long": text_model(_STEPS, "LSTM<hidden_size = 32>(x,w,r,b)", **_LSTM),
    "LSTM-two ways": text_model(
        _STEPS, 'LSTM<hidden_size = 32, direction = "bidirectional">(x,w,r,b)', **_TWO_WAYS
    ),
    "GRU-long": text_model(_STEPS, "GRU<hidden_size = 32>(x,w,r,b)", **_GRU),
    "GRU-reset behind the product": text_model(
        _STEPS, "GRU<hidden_size = 32, linear_before_reset = 1>(x,w,r,b)", **_GRU
    ),
    "RNN-long": text_model(_STEPS, "RNN<hidden_size = 32>(x,w,r,b)", **_RNN),
    "RNN-backwards": text_model(
        _STEPS, 'RNN<hidden_size = 32, direction = "reverse">(x,w,r,b)', **_RNN
    ),
    "RNN-of Relu": text_model(
        _STEPS, 'RNN<hidden_size = 32, activations = ["Relu"]>(x,w,r,b)', **_RNN
    ),
    "Attention-causal": text_model(HEADS, "Attention<is_causal = 1>(x,k,v)", k=HEADS, v=HEADS),
    "Attention-grouped": text_model(HEADS, "Attention(x,k,v)", k=GROUPED, v=GROUPED),
    "Attention-capped": text_model(HEADS, "Attention<softcap = 2.0>(x,k,v)", k=HEADS, v=HEADS),
    "GroupNormalization-real": text_model(
        IMAGE, "GroupNormalization<num_groups = 2>(x,s,b)", s="8", b="8"
    ),
    "InstanceNormalization-one image": text_model(
        "1,8,16,16", "InstanceNormalization(x,s,b)", s="8", b="8"
    ),
    "InstanceNormalization-two": text_model(IMAGE, "InstanceNormalization(x,s,b)", s="8", b="8"),
    "MeanVarianceNormalization-real": text_model(IMAGE, "MeanVarianceNormalization(x)"),
    "LpNormalization-real": text_model(ROWS, "LpNormalization(x)"),
    "LRN-real": text_model(IMAGE, "LRN<size = 5>(x)"),
    "MatMul-real": text_model(ROWS, "MatMul(x,w)", w="256,128"),
    "MatMul-batched": text_model("8,32,64", "MatMul(x,w)", w="8,64,32"),
    "Conv-real": text_model(IMAGE, "Conv(x,w,b)", w="16,8,3,3", b="16"),
    "Conv-depthwise": text_model(IMAGE, "Conv<group = 8>(x,w)", w="8,1,3,3"),
    "Conv-one axis": text_model("2,8,64", "Conv(x,w)", w="16,8,5"),
    "ConvTranspose-real": text_model(IMAGE, "ConvTranspose<strides = [2,2]>(x,w)", w="8,4,2,2"),
    "DeformConv-real": text_model("1,4,10,10", "DeformConv(x,w,o)", w="8,4,3,3", o="1,18,8,8"),
    "Softmax-real": text_model(ROWS, "Softmax(x)"),
    "ReduceMean-of all": text_model(ROWS, "ReduceMean<keepdims = 0>(x)"),
    "ReduceL2-real": text_model(ROWS, "ReduceL2(x)"),
    "ReduceL1-real": text_model(ROWS, "ReduceL1(x)"),
    "CumSum-real": "(float[64,32] x) => (float y) <int64 a = {1}> { y = CumSum(x, a) }",
    "GlobalAveragePool-real": text_model(IMAGE, "GlobalAveragePool(x)"),
    "AveragePool-real": text_model(IMAGE, "AveragePool<kernel_shape = [3,3]>(x)"),
    "LpPool-real": text_model(IMAGE, "LpPool<kernel_shape = [3,3]>(x)"),
    "GridSample-real": text_model(IMAGE, "GridSample(x,g)", g="2,9,9,2"),
    "Resize-linear": "(float[2,8,16,16] x) => (float y) <float[4] s = {1,1,2,2}>"
    ' { y = Resize<mode = "linear">(x, , s) }',
    "Resize-cubic": "(float[2,8,16,16] x) => (float y) <float[4] s = {1,1,2,2}>"
    ' { y = Resize<mode = "cubic">(x, , s) }',
    **{
        f"{operator}-real": text_model(ROWS, f"{operator}(x)")
        for operator in (
            *("Gelu", "Erf", "Tanh", "Sigmoid", "Elu", "Selu", "Celu", "Softplus", "Softsign"),
            *("HardSigmoid", "Sin", "Cos", "Exp"),
        )
    },
    "Gelu-by tanh": text_model(ROWS, 'Gelu<approximate = "tanh">(x)'),
    "RotaryEmbedding-real": text_model(
        "2,4,16,32", "RotaryEmbedding(x,c,d)", c="2,16,16", d="2,16,16"
    ),
}
"""Models in ONNX's text form, by operator and what is special."""


def real_sizes() -> Iterator[tuple[str, onnx.ModelProto, dict[str, Array]]]:
    """Yield the models, each with its name and what is fed to it."""
    texts = {
        f"{label.partition(' ')[0]}-{label.partition(' ')[2] or 'rows'}": row
        for label, row in REAL_SIZES.items()
    }
    texts |= {
        label: (NEWER if label.startswith(OF_NEWER) else OPSET, text)
        for label, text in KERNELS.items()
    }
    for label, (opset, text) in texts.items():
        model = parse(text, opset=opset, ir=10)
        yield label, onnx.shape_inference.infer_shapes(model), _inputs(model)


def _inputs(model: onnx.ModelProto) -> dict[str, Array]:
    """Return normal numbers; small ones for weights, positive ones for a variance, as grids."""
    rng = np.random.default_rng(SEED)
    arrays = {}
    for value in model.graph.input:
        shape = [each.dim_value for each in value.type.tensor_type.shape.dim]
        array = rng.standard_normal(shape)
        if value.name in ("w", "r"):
            array *= SMALL
        elif value.name == "g":
            array = np.tanh(array)
        elif value.name == "v" and len(shape) == 1:
            array = np.abs(array) + 0.1
        arrays[value.name] = array.astype(np.float32)
    return arrays
