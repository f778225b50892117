"""TensorRT and TensorRT-RTX: engines built and run through Polygraphy's loaders and runners."""
