"""Files of the runtime.

tensors       of the user: `.npy`, `.npz`, `.safetensors`
atomic_write  files that appear when they are complete
digest        against accidents
scratch       folders for what processes hand one another
checked_build a build against its digests
"""
