"""Effort: how long search and proof go on before they are content with what they have."""

from __future__ import annotations

MAX_ROUNDS = 12
"""How often the model may learn of reshards; by then most plans are settled."""

MAX_PROOFS = 64
"""How often what reshards take at least is replaced by what they take."""

FEW_PROOFS = 3
"""The same at a price of bytes, to find plans."""

ASCENTS = 2
"""How often messages are sent in between."""

PATIENCE, MORE_PATIENCE = 4, 32
"""Before anything is found, or within a limit, a bound that rises too slowly by so much is left."""

MAX_ASCENTS = 200
"""How often messages are sent in a round, if the bound still rises."""

CHECKED = 10
"""After so many ascents labels are looked at."""

TURN_ROUNDS, TURN_ASCENTS, MAX_TURNS, HELPS = 4, 12, 6, 0.9
"""Where plans and bounds are improved in turns: the same, turns, and how much each has to help."""

IDLE_ROUNDS = 3
"""After so many rounds that gained nothing that counts, models aren't searched on."""

IDLE_PROOFS, IDLE_PART = 8, 1e-3
"""After so many rounds in which the gap fell by less than that part of it, no more is proven."""

HANDFUL = 32
"""Up to so many ops a search takes no longer than what is shared by searches."""
