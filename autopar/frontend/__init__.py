"""Frontends: what the user has (an ONNX file, a torch module) becomes a serial program."""
