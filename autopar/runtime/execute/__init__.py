"""Carries out programs.

specialize   rank expressions become integers
emit         a function becomes generated code
body         each op of it a node
in_place     with new content written over the old one
held         unless the device finds something wrong
generate     that of a rank
replay       told to a GPU once, and again
control      calls and loops within it
ranks        who runs the programs in this process
distributed  one rank among real processes
connection   how it meets them, and leaves them
session      a rank as users call it
call_inputs  what its calls are given
virtual      all ranks in one process
serial       the program for one device
"""
