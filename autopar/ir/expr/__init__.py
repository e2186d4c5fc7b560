"""Whole numbers that are known only where, and when, a program runs.

`expression` builds and evaluates them, `facts` says what always holds of them, and `presence` where
they are 0. `parse` reads them, `arrays` evaluates them on all ranks at once, `at_rank` puts numbers
in their place in a program.
"""
