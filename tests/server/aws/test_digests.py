"""Digests of bodies that were sent lately are those of what is received, whatever that is."""

from __future__ import annotations

from hashlib import md5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.core.model import ShardId
from millrace.server.aws import message_attributes as module
from millrace.server.aws.message_attributes import Digests, digest_of

BODIES = st.sampled_from([b"", b"a", b"b", b"long" * 300])
PLACES = st.integers(1, 3)
SHARD = ShardId(7)


@given(st.lists(st.tuples(st.booleans(), PLACES, PLACES, BODIES)))
def test_a_digest_is_of_the_bytes_that_are_told(steps: list[tuple[bool, int, int, bytes]]) -> None:
    """Also where another message has its place by now: a repeat, or after a restore."""
    digests = Digests()
    for is_sent, shard, seq, body in steps:
        if is_sent:
            digests.keep(ShardId(shard), seq, body, digest_of(body))
        else:
            assert (
                digests.take(ShardId(shard), seq, body)
                == md5(body, usedforsecurity=False).hexdigest()
            )


def test_it_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = Digests()
    digests.keep(SHARD, 1, b"a", "of a")
    assert digests.take(SHARD, 1, b"a") == "of a"
    monkeypatch.setattr(module, "digest_of", lambda body: f"again {body!r}")
    assert digests.take(SHARD, 1, b"a") == "again b'a'"


def test_of_too_many_none_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SQS_DIGESTS_BYTES_MAX", 10_000)
    monkeypatch.setattr(module, "digest_of", lambda body: "again")
    digests = Digests()
    most = 10_000 // (100 + module._BESIDE_BYTES)
    for seq in range(most + 1):
        digests.keep(SHARD, seq, bytes(100), "kept")
    assert [digests.take(SHARD, seq, bytes(100)) for seq in range(most + 1)] == [
        *["again"] * most,
        "kept",
    ]
    for seq in range(most):
        digests.keep(SHARD, seq, bytes(100), "kept")
    assert {digests.take(SHARD, seq, bytes(100)) for seq in range(most)} == {"kept"}


def test_one_that_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SQS_DIGESTS_BYTES_MAX", 10_000)
    digests = Digests()
    digests.keep(SHARD, 1, bytes(10_001), "kept")
    assert digests.take(SHARD, 1, bytes(10_001)) == digest_of(bytes(10_001))


def test_a_repeat_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SQS_DIGESTS_BYTES_MAX", 10_000)
    digests = Digests()
    digests.keep(SHARD, 1, b"a", "of a")
    for _ in range(10):
        digests.keep(SHARD, 2, bytes(5000), "of a repeat")
    assert digests.take(SHARD, 1, b"a") == "of a"
