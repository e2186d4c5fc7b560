"""A program as a network of variables whose least cost is that of the fastest plan.

network       variables, and tables of costs between them
model         a program as one
tables        what is known of a program's ways, made when asked for
candidates    the ways to compute an op that are considered
transfer      seconds between the forms in which values are left and needed
memory_price  what a rank holds for long, at a price per byte
prune         ways that no fastest plan needs
shares        what a bound charges each reader
order         sums that can't travel together
"""
