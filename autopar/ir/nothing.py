"""What ops make of no elements: entries of `Op.plan`, each with a monoid per result.

A rank may hold nothing of what others have a part of, and a size that is open may be 0.
"""

IDENTITY = "identity"
"""What a rank contributes to a reduction of which others have a part, separated by commas."""

OF_NOTHING = "of_nothing"
"""What the result is where nobody has an element: for ops that kernels refuse then."""
