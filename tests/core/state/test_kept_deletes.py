"""Live deletes by second, against a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from millrace.core.state.kept_deletes import KeptDeletes

STEPS = st.lists(
    st.tuples(st.just("add"), st.integers(0, 2), st.sets(st.integers(1, 6)))
    | st.tuples(st.just("discard"), st.just(0), st.sets(st.integers(1, 60))),
    min_size=8,
    max_size=20,
)


@given(STEPS)
def test_it_is_a_dictionary_of_seconds(steps: list[tuple[str, int, set[int]]]) -> None:
    deletes, plain = KeptDeletes(), dict[int, set[int]]()
    second = last = 0
    for what, later, seqs in steps:
        if what == "add":
            second += later
            seqs = {last + seq for seq in seqs}
            last = max(seqs, default=last)
            deletes.add(second, BitMap64(seqs))
            if seqs:
                plain.setdefault(second, set()).update(seqs)
        else:
            changed = [second for second, waiting in plain.items() if waiting & seqs]
            assert deletes.discard(BitMap64(seqs)) == changed
            plain = {at: waiting - seqs for at, waiting in plain.items() if waiting - seqs}
        assert [(at, set(waiting)) for at, waiting in deletes] == list(plain.items())
        assert set(deletes.seqs) == set().union(*plain.values())
        assert deletes.oldest() == next(iter(plain), None)
        assert bool(deletes) == bool(plain)
        for at in range(second + 1):
            waiting = deletes.get(at)
            assert (set(waiting) if waiting else set()) == plain.get(at, set())


def test_what_is_taken_in_stays_the_callers() -> None:
    deletes, seqs = KeptDeletes(), BitMap64([1, 2])
    deletes.add(1, seqs)
    deletes.add(1, BitMap64([3]))
    deletes.discard(BitMap64([1]))
    assert list(seqs) == [1, 2]
