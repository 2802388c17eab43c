"""Keys in order: the right ones, and with little work."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.store.overlay import KeyOrder

keys = st.binary(min_size=1, max_size=3)


@given(st.lists(st.tuples(st.lists(keys, max_size=6), keys, keys, st.integers(1, 5)), max_size=8))
def test_order_is_that_of_all_keys_so_far(
    steps: list[tuple[list[bytes], bytes, bytes, int]],
) -> None:
    table: dict[bytes, None] = {}
    order = KeyOrder(table)
    for new, low, high, most in steps:
        table.update(dict.fromkeys(new))
        within = [key for key in sorted(table) if low <= key < high]
        assert order.between(low, high) == within
        assert order.between(low, high, most) == within[:most]
        below = [key for key in sorted(table) if key < high]
        assert order.last_before(high) == (below[-1] if below else None)


class Counted(bytes):
    """A key that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: bytes) -> bool:
        Counted.compared += 1
        return bytes.__lt__(self, other)


def test_a_question_costs_what_it_asks_for() -> None:
    """However much was changed, and however often one asks between changes."""
    count = 1 << 14
    table: dict[bytes, None] = {}
    order = KeyOrder(table)
    questions = 0
    # Scattered, so that each new key falls between known ones.
    for at in range(count):
        table[Counted((at * 40_503 % (1 << 16)).to_bytes(4, "big"))] = None
        if at % 16 == 0:
            questions += 1
            assert len(order.between(b"", b"\xff", 4)) == min(4, at + 1)
    # Each key is sorted once per doubling of the table; a question looks at each run.
    assert Counted.compared < 3 * count * 14
    Counted.compared = 0
    for _ in range(100):
        order.between(b"\0\0\x80", b"\xff", 4)
    assert Counted.compared < 100 * 14 * 3 * 14
