"""Inputs and outputs, as the user sees them.

ports           checked, cut into pieces, put together
outputs         pieces sent around
boxes, regions  which piece of a tensor a rank holds
batches         nested tensors, by their labels
dense, nested   what a tensor is, and where tensors are
assumptions     what a run finds against what its program assumes
index_bounds    inputs that index what isn't there
rates           which of them are learning rates
keeping         new content of stored inputs
writing_back    into the caller's tensors
staging         from the host to a device
"""
