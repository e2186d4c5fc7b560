"""What is known of models of several kinds of inputs."""

from __future__ import annotations

from collections.abc import Mapping

from tests.sweep.known.entry import Known

KNOWN: Mapping[str, Known] = {
    "instructblip": Known({"image_token_id": 5}),
    "muse_spark": Known({"out_hidden_size": 256}),
}
