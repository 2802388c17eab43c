"""Size of a message, for the limit of a queue."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.format import block_ops
from millrace.core.format.block import Block
from millrace.core.model import NewMessage
from millrace.core.transfer import forward

NAMES = ["a", "aws", "aws.x", "aws.types", "Aws.x", "millrace-", "millrace-group", "millrace", "k"]
MESSAGES = st.builds(
    NewMessage,
    st.none() | st.binary(max_size=9),
    st.none() | st.binary(max_size=3),
    st.lists(st.tuples(st.sampled_from(NAMES), st.binary(max_size=6)), max_size=4).map(tuple),
)


def size(message: NewMessage) -> int:
    """The body and the headers of the program."""
    return len(message.body or b"") + sum(
        len(name) + len(value)
        for name, value in message.headers
        if not name.startswith(("aws.", "millrace-"))
    )


@given(st.lists(MESSAGES, min_size=1, max_size=8), st.integers(1, 30), st.data())
def test_body_and_headers_of_the_program_count(
    messages: list[NewMessage], most: int, data: st.DataObject
) -> None:
    block = Block.of_messages(messages)
    expected = [size(message) > most for message in messages]
    assert forward.oversized_rows(block, most).tolist() == expected
    # A slice of rows has the offsets of the whole.
    low = data.draw(st.integers(0, len(messages) - 1))
    part = block_ops.of_rows(block.arrow(0, 0, 0).slice(low))
    assert forward.oversized_rows(part, most).tolist() == expected[low:]
