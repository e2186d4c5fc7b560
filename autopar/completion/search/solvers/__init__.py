"""Solvers of networks.

eliminate  variables with one or two neighbours, exactly
trws       tree-reweighted message passing: labels, and a bound
improve    better labels, many variables at a time
"""
