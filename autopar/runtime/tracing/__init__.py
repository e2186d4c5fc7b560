"""Traces: when each op of each rank ran, as a file for Perfetto and Chrome.

While code is traced, each op of a rank's emitted graph says when it began and ended, under its name
in the program. Without a trace nothing is added to that code. Each rank writes a file of its own
beside the trace, and rank 0 merges them.
"""
