"""Checkpoints: complete or absent, readable on any mesh.

checkpoint                    written and read
series, owner                 where they go, and who may write there
files, index                  what they hold
reading, tasks, pieces        what a rank needs of one
foreign                       those of torch.distributed.checkpoint
torch_file, inert_pickle      torch's files, without running anything
checked                       compared with their digests
"""
