"""Functions of torch that need care while they are traced.

recurrent, alignments, batch_norms   kept whole
checkpoints                          noted, to be computed again
own_backward                         gradients that code makes itself
strided                              strided views as what they are
mixed                                products of several dtypes, refused
"""
