"""Sessions for ordinary scripts: who starts ranks, keeps them, and calls them from outside.

session     what users call
requests    in order, several of them put together
rows        the proof that this changes no result
runners     who carries them out: processes, or this one
crew        the ranks, as processes of the session's own
rank        what each of these processes runs
arena       the memory that both share
line        what they tell one another
arguments   inputs and outputs as ONNX Runtime describes them
"""
