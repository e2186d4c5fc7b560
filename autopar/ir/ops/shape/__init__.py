"""Rules of ops that move elements and compute nothing: views, slices, pads, diagonals."""
