"""From one layout to another: the fastest way, and what it takes at least.

reshards                 a move, and a sequence of them
planner                  the fastest sequence of moves, remembered
path                     the search for it
moves, slots, places     how a layout can change in one step
permutation, coarse      axes in other places, and axes that do the same
redistribution           how much moves when other axes cut a dimension
bound, relaxed           seconds that one reshard takes at least
bulk, least              all pairs of layouts at once
making                   from which form each other one is made
deferred_sums, buckets   sums that travel together
"""
