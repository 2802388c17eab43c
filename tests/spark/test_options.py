"""What options say, and what is refused of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.errors import Invalid
from millrace.spark.options import read_options
from millrace.spark.start import LATEST, Start, read_places

PLAIN = {"url": "http://localhost:1", "queue": "tea"}


def test_names_are_in_any_case_and_values_are_checked() -> None:
    found = read_options(
        PLAIN
        | {
            "MAXoffsetsPerTrigger": "5",
            "minpartitions": "3",
            "failOnDataLoss": "False",
            "columns": "seq, key",
            "keys": '["a", "b,c", "a"]',
            "startingoffsets": '{"1": 7}',
            "tokenFile": "/a/b",
        },
        is_stream=True,
    )
    assert (found.rows_max, found.partitions_min, found.fail_on_data_loss) == (5, 3, False)
    assert (found.columns, found.keys) == (("seq", "key"), (b"a", b"b,c"))
    assert (found.starting, found.ending, found.space) == (Start(seqs=((1, 7),)), LATEST, "default")
    assert found.home.token_file == "/a/b"


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"maxOffsetPerTrigger": "5"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"token": "secret"}, "tokenFile"),
        ({"path": "/data"}, "either url"),
        ({"view": "all"}, "one of changes, latest, log"),
        ({"maxOffsetsPerTrigger": "0"}, "from 1"),
        ({"maxBytesPerTrigger": "many"}, "maxBytesPerTrigger is 'many'"),
        ({"failOnDataLoss": "maybe"}, "not true or false"),
        ({"startingOffsets": "soon"}, "not earliest, latest"),
        ({"startingOffsets": '{"0": "x"}'}, "no JSON of seqs"),
        ({"startingOffsets": '{"0": -3}'}, "counted from 0"),
        ({"startingTimestamp": "soon"}, "not a time"),
        ({"startingTimestamp": "9" * 20}, "not a time"),
        ({"startingTimestamp": "5", "startingOffsets": "latest"}, "say both where to start"),
        ({"patience": "-1"}, "not a number of seconds"),
        ({"format": "xml"}, "one of json, avro, arrow"),
        ({"keys": "[1]"}, "no JSON list"),
        ({"body": "raw"}, "without one they are in value"),
    ],
)
@pytest.mark.parametrize("is_stream", [True, False])
def test_what_is_wrong_is_refused_with_a_hint(
    told: dict[str, str], message: str, *, is_stream: bool
) -> None:
    with pytest.raises(Invalid, match=message):
        read_options(PLAIN | told, is_stream=is_stream)


@pytest.mark.parametrize(
    ("told", "is_stream", "message"),
    [
        ({"view": "latest"}, True, "spark.read"),
        ({"endingOffsets": "latest"}, True, "a stream has none"),
        ({"cursor": "lake"}, False, "a batch has none"),
        ({"maxOffsetsPerTrigger": "5"}, False, "an option of readStream"),
        ({"maxBytesPerTrigger": "5"}, False, "an option of readStream"),
        ({"failOnDataLoss": "false"}, False, "an option of readStream"),
        ({"endingOffsets": "earliest"}, False, "nothing would be read"),
        ({"endingOffsets": "latest", "endingSnapshot": "x"}, False, "where to end"),
    ],
)
def test_streams_and_batches_have_their_own(
    told: dict[str, str], message: str, *, is_stream: bool
) -> None:
    with pytest.raises(Invalid, match=message):
        read_options(PLAIN | told, is_stream=is_stream)
    assert read_options({"url": "http://x", "queue": "tea"}, is_stream=is_stream).queue == "tea"
    with pytest.raises(Invalid, match="queue is missing"):
        read_options({"url": "http://x"}, is_stream=is_stream)


def test_places_are_those_of_the_queue() -> None:
    assert read_places([(0, -2), (1, -1), (2, 0)], (5, 6, 7, 8), "f") == (0, 6, 0, 0)
    assert read_places([(0, 6)], (5,), "f") == (5,)
    # What is not named is read to its end.
    assert read_places([(1, 3)], (5, 6, 7), "f", is_end=True) == (5, 2, 7)
    assert read_places([(0, -1)], (5,), "f", is_end=True) == (5,)
    with pytest.raises(Invalid, match="give -1, the latest"):
        read_places([(0, -2)], (5,), "f", is_end=True)
    for wrong in ([(1, 1)], [(0, 7)]):
        with pytest.raises(Invalid, match="f "):
            read_places(wrong, (5,), "f")


def test_sec_24_a_token_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("mr_secret\n")
    home = read_options(PLAIN | {"tokenFile": str(file)}, is_stream=False).home
    file.chmod(0o640)
    with pytest.raises(Invalid, match="its mode is 0640") as caught:
        home.token()
    assert caught.value.field == "tokenFile"
    file.chmod(0o600)
    assert home.token() == "mr_secret"
