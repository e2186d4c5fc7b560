"""Build folders.

files     what a build holds, read and written
manifest  what it says of itself
"""
