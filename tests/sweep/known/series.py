"""What is known of models of time series."""

from __future__ import annotations

from collections.abc import Mapping

from tests.sweep.known.entry import Known, floats, integers, ones

KNOWN: Mapping[str, Known] = {
    "autoformer": Known({"prediction_length": 4}),
    "decision_transformer": Known(
        kind="DecisionTransformerModel",
        inputs={
            "states": floats(4, 12, 17),
            "actions": floats(4, 12, 4),
            "rewards": floats(4, 12, 1),
            "returns_to_go": floats(4, 12, 1),
            "timesteps": integers(0, 60, 4, 12),
            "attention_mask": ones(4, 12),
        },
        alone=True,
    ),
    "informer": Known({"prediction_length": 4}),
    "time_series_transformer": Known({"prediction_length": 4}),
    "timesfm2_5": Known(
        {"context_length": 128, "output_quantile_len": 128},
        {"past_values": floats(4, 128), "future_values": floats(4, 16)},
    ),
}
