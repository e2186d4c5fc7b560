"""Operators that treat every element by itself."""
