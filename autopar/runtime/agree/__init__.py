"""Ranks make sure that they have the same.

handshake      builds, before the first collective
agreement      batches and requests, in every step
preparing      what each prepares for a call that none begins unless all can
sums           of a few numbers over all ranks
shared_lines   memory in which ranks of one host sum
talk           sums and texts, to hear of one another
disagreement   who differs
sampling, sketch   digests of large tensors
"""
