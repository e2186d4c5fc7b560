"""Carries out programs.

specialize   rank expressions become integers
emit         a function becomes generated code
control      calls and loops within it
ranks        who runs the programs in this process
distributed  one rank among real processes
virtual      all ranks in one process
serial       the program for one device
"""
