"""Collectives, as ranks carry them out.

communication      on torch's functional collectives
async_collectives  started, and awaited later
groups             who communicates
pieces             what collectives are made of
windows            windows of tensors, out of the blocks of several members
monoids, reducing  reductions, also where a backend has gaps
wire_dtypes        as what elements travel
sending            what one rank hands to others outside of programs
host_transfers     between a device's memory and its host's
reference          collectives by definition
races              memory that a collective under way shares
"""
