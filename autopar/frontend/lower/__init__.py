"""From an exported graph of ATen ops to a serial program.

fx                                    the lowering
arguments, exported                   what nodes and graphs say
contents, writes, explicit_writes, functionalized   what is written becomes results
lists, dropout, random                ops that are taken apart or replaced
recurrent                             recurrent layers as one op
marks, activations, misplaced         what the user said within a model
spelling, source_line                 names, and lines of users
"""
