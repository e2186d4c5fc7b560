"""What a model keeps from call to call, and what can't be followed.

assigned, overwritten             buffers and parameters that `forward` assigns
formulas, tables                  what is made of buffers
written_once, leftovers           models that an earlier call left otherwise
overlaps                          parameters that are views of others
python_state, python_objects      plain attributes that change
outside_numbers                   numbers outside of a model that change
"""
