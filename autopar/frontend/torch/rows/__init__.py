"""Rows that data select: computed for every place, zeros where there is none.

selections            `h[mask]`, `torch.where(mask)`
apart                 which ops compute rows apart from each other
picks, picked         functions called for all rows
masked, indices       masks and rows as indices
reads, writes, scatters, joins, joined   what reads rows, and what brings them back
counts                functions that ask for the number of rows
parts, visits         code that data may skip
gradients, presence   which gradients there are where code was skipped
report                what the user is told
"""
