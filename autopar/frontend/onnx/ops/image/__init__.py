"""Operators that read windows or points of images."""
