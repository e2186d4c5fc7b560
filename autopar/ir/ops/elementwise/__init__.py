"""Rules of ops that treat every element by itself: arithmetic, casts, quantization, optimizers."""
