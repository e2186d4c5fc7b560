"""Weights: in files of safetensors, read by slice.

weights                  a rank's pieces
sources, names, dtypes   what may be given as weights
taking                   into tensors that are there
writing, shards          files, and folders in Hugging Face's layout
digests, identity        compared where they are read, and between ranks
checked                  all files of weights
"""
