"""Solvers of networks.

eliminate  variables with one or two neighbours, exactly
trws       tree-reweighted message passing: labels, and a bound
narrow     the bound exactly, once few labels are left that a better solution may have
improve    better labels, many variables at a time
"""
