"""Rules of ops that make tensors of nothing: constants, ranges, random numbers."""
