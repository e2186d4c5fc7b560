"""What code asks of values, and what is random.

conditions         questions, as `if mask.any()`
cones              the few values that answer them
assumptions        what was answered
counts             numbers of rows, which code may compare with zero
formatted, kept_results      texts of numbers, results by argument
draws, lots, own_generators  Python's and NumPy's random numbers
unread, unreadable           values that code doesn't, or mustn't, read
"""
