"""What every plan takes at least.

proof       a network that costs no plan more than it takes
proving     the bound from it
lagrangian  of plans that fit into a limit of memory
"""
