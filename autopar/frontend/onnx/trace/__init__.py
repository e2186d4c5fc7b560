"""Runs an ONNX graph once, on fake tensors.

bind     gives inputs their shapes
walk     node by node
control  what is known is unrolled or inlined
scope    which names a graph sees
record   at once if all is known, else traced
trace    records what translations do
node     what a translation sees
values   known or traced
sized    integers that follow from open sizes
sizing   what nodes make of these
ratios   such that are floating-point numbers on the way
names    of weights, as users write them
"""
