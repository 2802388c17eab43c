"""Only damage makes rows unreadable."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millrace.errors import Corrupt
from millrace.store.row_location import RowLocation
from millrace.store.unreadable import Unreadable, reading_rows

PLACE = RowLocation(home=1, offset=0, length=10, count=1, span=1, time_ms=0, last_ms=0, flags=0)


@pytest.mark.parametrize("error", [MemoryError("no memory"), pa.ArrowMemoryError("no memory")])
def test_rows_for_which_there_is_no_memory_are_not_damaged(error: MemoryError) -> None:
    with pytest.raises(MemoryError), reading_rows(1, 1, PLACE):
        raise error


@pytest.mark.parametrize("error", [Corrupt("a bad checksum"), pa.ArrowInvalid("no such offset")])
def test_damage_names_the_rows(error: Exception) -> None:
    with (
        pytest.raises(Unreadable, match="rows 7 to 7 cannot be read") as caught,
        reading_rows(1, 7, PLACE),
    ):
        raise error
    assert (caught.value.shard, caught.value.first, caught.value.last) == (1, 7, 7)
