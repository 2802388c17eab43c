"""Pipelines with steps, on a real Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from millrace import Message, Settings, limits, sync
from millrace.errors import Invalid, Refused
from millrace.pipeline import (
    Pipeline,
    Progress,
    Setting,
    Source,
    Step,
    Where,
    run_pipeline,
    sparked,
    verify_pipeline,
)
from millrace.pipeline.staging import stage_frame
from tests.pipeline.ledger import Ledger
from tests.pipeline.scene import ledger_at, plain

pytestmark = pytest.mark.spark

HERE = Path(__file__).parent
PARSED = "SELECT seq, op, cast(key AS string) id, cast(value AS string) word FROM source"

Run = Callable[[Pipeline], list[Progress]]


@pytest.fixture
def run(spark: SparkSession, m: sync.Millrace, tmp_path: Path) -> Run:
    def run(pipeline: Pipeline) -> list[Progress]:
        told: list[Progress] = []
        setting = Setting(millrace=m, where=Where(path=str(tmp_path / "data")))
        run_pipeline(pipeline, setting, once=True, tell=told.append, spark=spark)
        return told

    return run


def stepped(pipeline: Pipeline, *steps: Step, **sinks: str) -> Pipeline:
    """With steps, and sinks that take their rows from them."""
    declared = (
        msgspec.structs.replace(sink, rows=sinks.get(sink.name, sink.rows))
        for sink in pipeline.sinks
    )
    return msgspec.structs.replace(pipeline, steps=steps, sinks=tuple(declared), folder=str(HERE))


def words(ledger: Ledger) -> list[str]:
    return sorted(str(line["word"]) for line in ledger.lines())


def test_steps_fan_out(tmp_path: Path, m: sync.Millrace, run: Run) -> None:
    one, first = ledger_at(tmp_path, "one")
    two, second = ledger_at(tmp_path, "two", key=("id",))
    pipeline = stepped(
        plain(one, two),
        Step(name="parsed", sql=PARSED),
        Step(name="loud", python="steps.py:loud"),
        one="parsed",
        two="loud",
    )
    queue = m.queue("orders", keyed=True, retention="log")
    queue.publish_many([Message(b"red", "a"), Message(b"blue", "b")])
    run(pipeline)
    queue.publish_many([Message(None, "a"), Message(b"green", "b")])
    run(pipeline)
    assert words(first) == ["None", "blue", "green", "red"]
    assert words(second) == ["GREEN"]


def test_many_rows_go_through_executors(tmp_path: Path, m: sync.Millrace, run: Run) -> None:
    one, first = ledger_at(tmp_path, "one")
    two, second = ledger_at(tmp_path, "two", key=("id",))
    two.settings["lanes"] = 4  # type: ignore[index]
    pipeline = stepped(plain(one, two), Step(name="parsed", sql=PARSED), one="parsed", two="parsed")
    queue = m.queue("orders", shards=2)
    rows = [Message(b"%d" % n, b"%d" % (n % 7_000)) for n in range(12_000)]
    with sync.share(m):
        queue.publish_many(rows)
        told = run(pipeline)
    assert [progress.rows for progress in told] == [12_000]
    assert sorted(int(word) for word in words(first)) == list(range(12_000))
    assert len(second.lines()) == 7_000
    assert {progress.name: progress.rows for progress in told[0].sinks} == {
        "one": 12_000,
        "two": 12_000,
    }


@pytest.mark.long
def test_workers_may_die_more_often_than_spark_bears(
    tmp_path: Path, m: sync.Millrace, run: Run
) -> None:
    one, first = ledger_at(tmp_path, "one")
    steps = [Step(name="parsed", sql=PARSED), Step(name="frail", python="steps.py:frail")]
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    # Each task is tried twice.
    for number in range(3):
        (deaths / str(number)).touch()
    m.queue("orders").publish(bytes(deaths))
    run(stepped(plain(one), *steps, one="frail"))
    assert words(first) == [str(deaths)]
    assert not list(deaths.iterdir())


def test_a_table_of_the_moment_is_joined_and_let_go(
    tmp_path: Path, m: sync.Millrace, run: Run
) -> None:
    one, first = ledger_at(tmp_path, "one")
    joined = """
        SELECT source.seq, source.op, cast(names.value AS string) word
        FROM source JOIN names ON source.key = names.key"""
    pipeline = stepped(plain(one, limit=1), Step(name="joined", sql=joined), one="joined")
    pipeline = msgspec.structs.replace(
        pipeline, sources={"names": Source(queue="names", view="latest")}
    )
    names = m.queue("names", keyed=True)
    names.publish_many([Message(b"red", "r"), Message(b"blue", "b")])
    with sync.share(m):
        m.queue("orders").publish_many([Message(b"1", key) for key in ("r", "b", "r")])
        told = run(pipeline)
    assert len(told) == 3
    assert words(first) == ["blue", "red", "red"]
    # Each span has pinned it, and let go what the one before had.
    assert len(names.holders().held) == 1


def test_rows_that_break_a_condition(tmp_path: Path, m: sync.Millrace, run: Run) -> None:
    one, first = ledger_at(tmp_path, "one")
    step = Step(name="parsed", sql=PARSED, expect={"short": "length(word) < 4"})
    failing = stepped(plain(one), step, one="parsed")
    dropping = stepped(plain(one), msgspec.structs.replace(step, on_fail="drop"), one="parsed")
    queue = m.queue("orders", keyed=True, retention="log")
    queue.publish_many([Message(b"red", "a"), Message(b"yellow", "b"), Message(None, "c")])
    with pytest.raises(Refused, match="step 'parsed': short, in the row of seq 2"):
        run(failing)
    assert first.lines() == []
    run(dropping)
    assert words(first) == ["None", "red"]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (Step(name="parsed", sql="SELECT nothing FROM source"), "nothing"),
        (Step(name="parsed", sql="SELECT * FROM elsewhere"), "elsewhere"),
        (Step(name="parsed", sql=PARSED, expect={"odd": "odd("}), "odd"),
        (Step(name="parsed", python="steps.py:loud"), "loud takes 'parsed'"),
    ],
    ids=["column", "view", "condition", "parameter"],
)
def test_steps_that_cannot_be(
    tmp_path: Path, m: sync.Millrace, run: Run, step: Step, said: str
) -> None:
    one, ledger = ledger_at(tmp_path, "one")
    m.queue("orders").publish(b"a")
    with pytest.raises(Invalid, match=said):
        run(stepped(plain(one), step, one="parsed"))
    assert ledger.lines() == []


def test_bodies_are_parsed_by_the_source(tmp_path: Path, m: sync.Millrace, run: Run) -> None:
    one, ledger = ledger_at(tmp_path, "one")
    pipeline = stepped(plain(one), Step(name="named", sql="SELECT seq, name FROM source"))
    source = msgspec.structs.replace(pipeline.source, schema="name STRING, age INT")
    [sink] = pipeline.sinks
    typed = msgspec.structs.replace(
        pipeline, source=source, sinks=(msgspec.structs.replace(sink, rows="named"),)
    )
    with sync.share(m):
        m.queue("orders").publish_many([b'{"name": "ada", "age": 36}', b'{"name": "bob"}'])
        run(typed)
    assert sorted(str(line["name"]) for line in ledger.lines()) == ["ada", "bob"]


def test_rows_that_break_a_condition_become_dead_letters(
    tmp_path: Path, m: sync.Millrace, run: Run
) -> None:
    one, ledger = ledger_at(tmp_path, "one")
    step = Step(
        name="parsed",
        sql=PARSED.replace("FROM", ", value FROM"),
        expect={"short": "length(word) < 4", "low": "word = lower(word)"},
        on_fail="dead_letter",
        dead_letter="bad",
    )
    pipeline = stepped(plain(one), step, one="parsed")
    queue = m.queue("orders")
    with sync.share(m):
        queue.publish_many([Message(b"red", "a"), Message(b"YELLOW", "b"), Message(b"Tan", "c")])
        for _ in range(2):
            run(pipeline)
    assert words(ledger) == ["red"]
    letters = {row.body or b"": dict(row.headers) for row in m.find("bad").peek(10)}
    assert sorted(letters) == [b"Tan", b"YELLOW"]
    assert letters[b"YELLOW"] == {
        "millrace-pipeline": b"orders",
        "millrace-step": b"parsed",
        "millrace-broken": b"short, low",
        "millrace-queue": b"default/orders",
        "millrace-shard": b"0",
        "millrace-seq": b"2",
    }


@pytest.mark.long
def test_many_rows_that_are_made_of_few_do_not_come_to_the_driver(
    tmp_path: Path,
    m: sync.Millrace,
    run: Run,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PIPELINE_SMALL_ROWS", 10)
    staged: list[int] = []

    def counted(*given: Any) -> tuple[Sequence[bytes], int]:
        found = stage_frame(*given)
        staged.append(found[1])
        return found

    monkeypatch.setattr(sparked, "stage_frame", counted)
    one, ledger = ledger_at(tmp_path, "one")
    sql = """
        SELECT seq, op, n, array(struct(n AS a, timestamp AS t, value AS v)) AS nested
        FROM (SELECT *, explode(sequence(1, 20)) AS n FROM source)
    """
    pipeline = stepped(plain(one), Step(name="wide", sql=sql), one="wide")
    with sync.share(m):
        m.queue("orders", retention="log").publish_many([b"a", b"b"])
        run(pipeline)
        setting = Setting(millrace=m, where=Where(path=str(tmp_path / "data")))
        assert (len(ledger.lines()), staged) == (40, [40])
        # They are compared some at a time, as what they are.
        [found] = verify_pipeline(pipeline, setting, spark)
        assert (found.method, found.expected, found.found) == ("rows", 40, 40)
        assert [one for one in found.differences if one.what == "missing"] == []


def test_a_further_source_is_where_it_says(tmp_path: Path, m: sync.Millrace, run: Run) -> None:
    one, ledger = ledger_at(tmp_path, "one")
    sql = """
        SELECT s.seq, cast(p.value AS string) AS word FROM source s JOIN prices p ON s.key = p.key
    """
    with sync.open(tmp_path / "other", settings=Settings(segment_bytes=4 * 1024 * 1024)) as other:
        other.queue("prices", keyed=True).publish(b"dear", key="tea")
        with sync.share(other), sync.share(m):
            m.queue("orders").publish(b"", key="tea")
            pipeline = msgspec.structs.replace(
                stepped(plain(one), Step(name="priced", sql=sql), one="priced"),
                sources={
                    "prices": Source(queue="prices", path=str(tmp_path / "other"), view="latest")
                },
            )
            run(pipeline)
    assert words(ledger) == ["dear"]
