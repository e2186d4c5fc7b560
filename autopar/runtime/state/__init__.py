"""The state of a program, as one device would have it.

state          whole tensors by name
session_state  of inference
state_file     as safetensors files
first_values   what it was before the first call
owners         which rank writes what several hold
placements, dtensors, wholes   pieces as DTensors, and put together
"""
