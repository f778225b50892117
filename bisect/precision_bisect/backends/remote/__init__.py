"""TensorRT on other machines, which have trtexec and are reached by ssh."""
