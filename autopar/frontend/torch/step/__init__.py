"""A training step.

recipe          what it consists of
stitch          graphs of its parts, put together
update, fused   clipping and the optimizer
scaling         of losses
state           of the optimizer before its first step
batch, example  what is trained on
"""
