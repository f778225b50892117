"""ONNX Runtime on CUDA: real FP16 and BF16 kernels."""
