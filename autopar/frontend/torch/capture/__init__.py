"""Captures modules: from code to a graph of ATen ops.

capture         a module and an example become a serial program
joint           forward and backward as one graph
described       what its inputs and outputs are
differentiable  outputs, and gradients from theirs
recorder        notes each op that torch runs
eager, ways     without AOT autograd, and which way is taken
fake            a copy of a module without weights
fake_kernels    what kernels return where torch's formulas say otherwise
kernel_dtypes   the dtypes that they return, put into a graph
rewrites        functions that are traced as others
simplify        ops taken out
"""
