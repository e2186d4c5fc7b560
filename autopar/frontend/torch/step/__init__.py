"""A training step.

recipe          what it consists of
graph, inputs   the graph of all of it, and what it reads
stitch          graphs of its parts, put together
microbatches    how a batch is cut
loss            what losses of microbatches are divided by
update, fused   clipping and the optimizer
scaling         of losses
state           of the optimizer before its first step
batch, example  what is trained on
"""
