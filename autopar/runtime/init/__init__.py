"""Initial values of a model that was captured without weights.

Why a record of the constructor, and not `reset_parameters` of each module on what a rank holds: the
numbers would depend on the mesh, and most models set their weights elsewhere. With the same seed,
all of ten models of transformers and torch.nn came out otherwise: 274 of 366 tensors, of which 63
got no value at all.

construction  what a constructor computes, as instructions
record        noted on fake tensors
replay        carried out with as little memory as can be
initialize    each rank's pieces
"""
