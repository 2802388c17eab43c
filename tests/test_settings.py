"""Settings that could not work are refused, and the refusal names the field and the limit."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.errors import Invalid
from millrace.settings import Settings


@pytest.mark.parametrize(
    ("given", "field", "limit"),
    [
        ({"segment_bytes": 5000}, "segment_bytes", 4096),
        ({"segment_bytes": 4096}, "segment_bytes", 8192),
        ({"log_segments_free": 0}, "log_segments_free", 1),
        ({"log_segments_unsealed": -1}, "log_segments_unsealed", 0),
        ({"log_segments_max": 8, "log_segments_unsealed": 5}, "log_segments_max", 9),
        ({"checkpoint_seconds": -1.0}, "checkpoint_seconds", 0),
        ({"checkpoint_seconds": float("nan")}, "checkpoint_seconds", 0),
        ({"checkpoint_log_bytes": -1}, "checkpoint_log_bytes", 0),
        ({"switch_interval_seconds": 0.0}, "switch_interval_seconds", 0),
    ],
)
def test_settings_that_cannot_work_are_refused(
    given: dict[str, Any], field: str, limit: int
) -> None:
    with pytest.raises(Invalid) as caught:
        Settings(**given)
    assert (caught.value.field, caught.value.limit) == (field, limit)
    assert field in str(caught.value)


def test_the_least_that_works() -> None:
    Settings(log_segments_max=4, log_segments_unsealed=0, log_segments_free=1, segment_bytes=8192)
