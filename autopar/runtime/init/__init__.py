"""Initial values of a model that was captured without weights.

construction  what a constructor computes, as instructions
record        noted on fake tensors
replay        carried out with as little memory as can be
initialize    each rank's pieces
"""
