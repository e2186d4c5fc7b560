"""Search: the fastest plan among all ways to compute every op, and how good it is at least."""
