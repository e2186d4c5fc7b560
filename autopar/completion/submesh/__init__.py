"""Programs whose ops run on slices of the mesh.

where   the slice of each op and value
slices  completes each slice as a program of its own
"""
