"""The factor rule, and what follows from it.

rule            the declarative description of an op
text            the text of a rule
alike           calls around which layouts are the same
distribution    what an op needs and leaves, given a choice
local_arg       arguments that depend on the shard
window          parts of an index range that others need
redistribution  who gets which windows from whom
numbering       which blocks members of a group hold, and which they want
foreign         kinds of ops that aren't ours
"""
