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

LEAST_WORK, OP_WORK = 4.4, 4.3e-3
"""What a search may do by default, in seconds that it takes about: of any program, and more per op.
Capturing and partitioning take half as long per op."""

WAY_WORK, CUBE_WORK = 1e-4, 3e-9
"""Seconds that it takes about to derive a way to compute an op; and, of the ways of each kind of
op, times their third power, to compare them with those of its neighbours."""

ROUND_WORK, PRESET_WORK, BODY_WORK = 1.5e-4, 4e-5, 1.4e-3
"""Per op, to make and to price a model once; and times the axes squared, to complete it by a
preset; and per axis and kind of op that has a body, to complete bodies on the way."""

TABLE_WORK, PATH_WORK, PAIR_WORK = 6e-4, 2e-9, 3e-6
"""Per table of reshards; per sum of two that may follow one another; and to bound one."""

PLAN_WORK, LOOK_WORK, LONG_WAYS = 5e-4, 1.5e-4, 25
"""To plan a reshard as it is carried out, to look for one, and how many times as much that is
where there are many axes."""

MATRIX_WORK, MESSAGE_WORK = 5e-10, 1.2e-5
"""Per cost of a table, to make it or to send a message over it; and per message."""
