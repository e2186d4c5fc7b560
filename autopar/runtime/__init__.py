"""Runs compiled programs: kernels, collectives, and what starts the ranks."""
