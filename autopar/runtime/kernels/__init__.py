"""The functions behind ops.

table          the function of each op kind, and its arguments
own_ops        ops that are autopar's own
naming         their kinds
the others     shards of lookups, writes, experts; random numbers; recurrent layers
"""
