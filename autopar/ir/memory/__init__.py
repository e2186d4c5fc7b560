"""Where values lie in memory: who shares it, and who may write over it.

storage    which values may share memory, and until when
strides    how tensors lie
kernels    which results may be views, which operands are written
updates    where the new content of a stored input may be written
overlap    which collectives run beside what follows, and where each is awaited
joining    steps of an optimizer that are one call
transfers  tensors that wait in their host's memory
"""
