"""Compares ranks with the serial program.

verification    value by value
rounding        how coarsely values were rounded
rounding_noise  how far rounding alone takes gradients
"""
