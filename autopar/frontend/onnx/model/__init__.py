"""What an ONNX file says, before anything is made of it.

load, external, tensors   reads files that nobody has vouched for
check, schema, cycles     is it well-formed?
expansion                 what functions unfold to
dtypes                    element types
problems                  what is wrong, raised once
"""
