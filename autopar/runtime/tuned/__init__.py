"""What a CPU computes at inference in place of a rank's program: the same but for rounding, faster.

The emitted graph is rewritten: what follows a convolution or product goes into it, images have
their channels last, what depends on weights alone is computed once, and functions of each element
write over operands that nobody else reads. Plans, reports and predictions know nothing of it.
"""
