"""What is known of models of time series."""

from __future__ import annotations

from collections.abc import Mapping

from tests.sweep.known.entry import Known, absent

KNOWN: Mapping[str, Known] = {
    "autoformer": Known({"prediction_length": 4}),
    "decision_transformer": Known(inputs={"token_type_ids": absent}),
    "informer": Known({"prediction_length": 4}),
    "time_series_transformer": Known({"prediction_length": 4}),
}
