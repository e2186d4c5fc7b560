"""What is to be decided: ops, their ways to be computed, and what those cost.

graph           the ops of a function, and what is pinned
op_strategies   the ways to compute an op, shared by equal ops
space           layouts and costs, each computed once
splits          which axes split which dimensions
cuts            how a program takes dimensions apart
price           the seconds of all reshards of a value
buckets         sums that travel together
body            alternative bodies of an op
variations      plans like one that is known, but for one op
"""
