"""What users see of a program and its plan.

explanation  why something is split as it is, and what else it could be
profiling    seconds, bytes and memory of ops and layers
reports      summaries, programs as text, two builds compared
"""
