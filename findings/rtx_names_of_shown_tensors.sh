#!/bin/sh
# Guess: a tensor that TensorRT-RTX leaves unfused, and shows when marked so, holds what the ONNX tensor it is named after
# holds; in its own words names "correspond to the names obtained by IEngineInspector".
# Seen (TensorRT-RTX 1.7.1.116, built for compute capability 8.6 on a CPU): the tensor "pooled.1_3_myl0" has the 16 x 16
# of the Relu before the pooling, not the 8 x 8 of "pooled": it is what the kernel that makes "pooled" reads. Marking
# unfused tensors leaves the builder's text on all layers the same.
# Exits with 1 where that has changed.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet tensorrt_rtx==1.7.1.116 onnx==1.23.2 numpy==2.4.6
"$place/venv/bin/python" - <<'PYTHON'
import re
import sys

import numpy as np
import onnx
import tensorrt_rtx as trt

model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
g (float16[1, 8, 16, 16] x) => (float16[1, 8, 4, 4] y) {
    first = Conv <pads = [1, 1, 1, 1]> (x, w)
    rectified = Relu (first)
    pooled = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (rectified)
    second = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (pooled, v)
    y = Tanh (second)
}""")
drawn = np.random.default_rng(0)
for name in ("w", "v"):
    weight = drawn.standard_normal((8, 8, 3, 3)).astype(np.float16)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))


class Log(trt.ILogger):
    def __init__(self):
        trt.ILogger.__init__(self)
        self.texts = []

    def log(self, severity, text):
        self.texts.append(text)


log = Log()


def layers(marked):
    log.texts.clear()
    builder = trt.Builder(log)
    network = builder.create_network(0)
    assert trt.OnnxParser(network, log).parse(model.SerializeToString())
    assert not marked or network.mark_unfused_tensors_as_debug_tensors()
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    assert builder.build_serialized_network(network, config) is not None
    return next(text for text in log.texts if text.startswith("Layers:"))


text = layers(marked=False)
shown = dict(re.findall(r"\{ Name: (pooled\S*), Dimensions: \[([\d,]+)\]", text))
print("tensorrt_rtx", trt.__version__, shown, "the same when marked:", text == layers(marked=True))
sys.exit("1,8,16,16" not in shown.values() or "1,8,8,8" in shown.values() or text != layers(True))
PYTHON
