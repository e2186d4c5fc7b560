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

LEAST_WORK, OP_WORK = 4.0, 5e-3
"""What a search may do by default, in seconds that it takes about: of any program, and more per op.
Capturing and partitioning take half as long per op."""

WAY_WORK, CUBE_WORK = 1e-4, 3e-9
"""Seconds that it takes about to derive a way to compute an op; and, of the ways of each kind of
op, times their third power, to compare them with those of its neighbours."""

ROUND_WORK, PRESET_WORK = 1.5e-4, 1.2e-4
"""Per op, to make and to price a model once; and per axis too, to complete it by a preset."""

PATH_WORK, PAIR_WORK, PLAN_WORK = 2e-9, 1e-6, 5e-4
"""Per sum of two reshards that may follow one another; to bound one; and to plan it as it is
carried out."""

MATRIX_WORK, MESSAGE_WORK = 5e-10, 2e-5
"""Per cost of a table, to make it or to send a message over it; and per message."""
