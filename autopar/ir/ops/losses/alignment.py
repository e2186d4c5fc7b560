"""Losses of sequences that are aligned with shorter ones: connectionist temporal classification.

No sequence depends on another, so the batch may be split. Steps follow one another, each over all
classes: these are whole.
"""

from __future__ import annotations

from autopar.ir.ops.table import Table, pending, row

CTC, CTC_GRADIENT = "autopar.ctc_loss", "autopar.ctc_loss_backward"

RULES: Table = {
    CTC: row("t b c, b s, b, b -> b", whole=("t", "c", "s"), work=16, aside=("c",)),
    CTC_GRADIENT: row(
        "b, t b c, b s, b, b -> t b c",
        whole=("t", "c", "s"),
        linear=(pending(0),),
        work=32,
        aside=("c",),
    ),
}
