"""What engines make of ONNX operators, read off their parsers and builders."""
