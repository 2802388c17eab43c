"""Dead letters of pipelines: the messages that rows were made of, there and back again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from millrace import Message, limits, sync
from millrace.batch_jobs.job_context import JobContext
from millrace.batch_jobs.redrive import LetterTransform, redrive, try_transform
from millrace.errors import Invalid
from millrace.pipeline import (
    Pipeline,
    Progress,
    Setting,
    Source,
    Step,
    Where,
    check_letters,
    plan_pipeline,
    run_pipeline,
    verify_pipeline,
)
from tests.pipeline.scene import KIND, ledger_at, plain
from tests.pipeline.test_streaming_steps import stepped

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]

Letter = tuple[bytes | None, list[tuple[str, bytes]], bytes]
Run = Callable[[Pipeline], list[Progress]]

ORDERS = [
    Message(b'{"amount": 3, "note": "kept"}', b"\xff1", headers=[("trace", b"\x00\x01")]),
    Message(
        b'{"amount": -1, "note": "lost?"}', b"\xff2", headers=[("trace", b"a"), ("trace", b"b")]
    ),
    Message(b'{"amount": -2}', b"\xff3"),
]
"""The second and the third are wrong."""

WANTED = {
    b"\xff2": (b'{"amount": -1, "note": "lost?"}', [("trace", b"a"), ("trace", b"b")], b"2"),
    b"\xff3": (b'{"amount": -2}', [], b"3"),
}

AMOUNT = "get_json_object(cast(value AS string), '$.amount')"

SHAPES: dict[str, Step] = {
    "select": Step(name="last", sql=f"SELECT {AMOUNT} amount FROM source"),
    "named otherwise": Step(
        name="last",
        sql=f"SELECT {AMOUNT} amount, hex(key) AS key, 1 AS seq FROM source WHERE seq > 0",
    ),
    "query in query": Step(
        name="last",
        sql=f"""
            WITH parsed AS (SELECT {AMOUNT} amount, seq AS n FROM source)
            SELECT /*+ REPARTITION(2) */ amount FROM (SELECT * FROM parsed p WHERE n > 0)
        """,
    ),
    "lookup": Step(
        name="last",
        sql="""
            SELECT get_json_object(cast(s.value AS string), '$.amount') amount, n.value name
            FROM source s LEFT JOIN names n ON s.key = n.key
        """,
    ),
    "function": Step(name="last", python="steps.py:amounts"),
}


@pytest.fixture
def setting(m: sync.Millrace, tmp_path: Path) -> Setting:
    return Setting(millrace=m, where=Where(path=str(tmp_path / "data")))


@pytest.fixture
def run(spark: SparkSession, setting: Setting) -> Run:
    def run(pipeline: Pipeline) -> list[Progress]:
        told: list[Progress] = []
        run_pipeline(pipeline, setting, once=True, tell=told.append, spark=spark)
        return told

    return run


def judged(step: Step) -> Step:
    return msgspec.structs.replace(
        step, expect={"amount": "amount > 0"}, on_fail="dead_letter", dead_letter="bad"
    )


def letters(
    m: sync.Millrace,
) -> dict[bytes | None, tuple[bytes | None, list[tuple[str, bytes]], bytes]]:
    """By key: body, headers of the message itself, and its seq."""
    found: dict[bytes | None, Letter] = {}
    for row in m.find("bad").peek(100):
        told = dict(row.headers)
        own = [pair for pair in row.headers if not pair[0].startswith("millrace-")]
        found[row.key] = (row.body, own, told["millrace-seq"])
        assert told["millrace-shard"] == b"0"
        assert told["millrace-queue"] == b"default/orders"
        assert told["millrace-broken"] == b"amount"
    return found


def names(m: sync.Millrace) -> dict[str, Source]:
    m.queue("names", keyed=True).publish(b"ada", key=b"\xff2")
    return {"names": Source(queue="names", view="latest")}


@pytest.mark.parametrize("shape", SHAPES)
def test_letters_are_the_messages_that_rows_were_made_of(
    tmp_path: Path, m: sync.Millrace, run: Run, shape: str
) -> None:
    one, ledger = ledger_at(tmp_path, "one")
    pipeline = stepped(plain(one), judged(SHAPES[shape]), one="last")
    m.queue("orders", keyed=True, retention="log").publish_many(ORDERS)
    if shape == "lookup":
        pipeline = msgspec.structs.replace(pipeline, sources=names(m))
    with sync.share(m):
        run(pipeline)
    assert len(ledger.lines()) == 1
    assert letters(m) == WANTED


def test_letters_of_many_rows_are_made_by_executors(
    tmp_path: Path, m: sync.Millrace, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PIPELINE_SMALL_ROWS", 2)
    one, ledger = ledger_at(tmp_path, "one")
    parsed = Step(name="parsed", sql=f"SELECT {AMOUNT} AS amount FROM source")
    pipeline = stepped(plain(one), parsed, judged(Step(name="last", sql="FROM parsed")), one="last")
    m.queue("orders", keyed=True, retention="log").publish_many(ORDERS)
    with sync.share(m):
        run(pipeline)
    assert len(ledger.lines()) == 1
    assert letters(m) == WANTED


def test_letters_of_parsed_bodies_have_them_as_they_came(
    tmp_path: Path, m: sync.Millrace, run: Run
) -> None:
    one, ledger = ledger_at(tmp_path, "one")
    pipeline = stepped(
        plain(one), judged(Step(name="last", sql="SELECT * FROM source")), one="last"
    )
    source = msgspec.structs.replace(pipeline.source, schema="amount INT")
    m.queue("orders", keyed=True, retention="log").publish_many(ORDERS)
    with sync.share(m):
        run(msgspec.structs.replace(pipeline, source=source))
    [line] = ledger.lines()
    assert sorted(line) == [
        "_corrupt",
        "amount",
        "headers",
        "key",
        "op",
        "seq",
        "shard",
        "snapshot",
        "timestamp",
    ]
    assert letters(m) == WANTED


LOST: dict[str, tuple[Step, str]] = {
    "aggregate": (
        Step(name="last", sql=f"SELECT key, sum({AMOUNT}) amount FROM source GROUP BY key"),
        "Aggregate",
    ),
    "explode": (
        Step(name="last", sql="SELECT key, explode(array(1, 2)) amount FROM source"),
        "Generate",
    ),
    "union": (Step(name="last", sql="SELECT seq amount FROM source UNION ALL SELECT 1"), "Union"),
    "right join": (
        Step(
            name="last",
            sql="SELECT 1 amount FROM source s RIGHT JOIN (SELECT 1 b) t ON s.seq = t.b",
        ),
        "lost in",
    ),
    "partitions": (Step(name="last", python="steps.py:by_partition"), "MapInArrow"),
}


@pytest.mark.parametrize("shape", LOST)
def test_a_step_that_loses_its_messages_has_no_letters(
    tmp_path: Path, m: sync.Millrace, setting: Setting, spark: SparkSession, shape: str
) -> None:
    one, ledger = ledger_at(tmp_path, "one")
    step, why = LOST[shape]
    pipeline = stepped(plain(one), judged(step), one="last")
    m.queue("orders", keyed=True, retention="log").publish_many(ORDERS)
    for call in (check_letters, plan_pipeline, run_pipeline):
        with pytest.raises(Invalid, match="which messages its rows were made of") as error:
            call(pipeline, Setting() if call is check_letters else setting, spark=spark)
        assert error.value.field == "on_fail"
        assert why in error.value.message
        assert "earlier step" in error.value.message
    assert ledger.lines() == []


def test_a_step_may_keep_the_columns_itself(tmp_path: Path, m: sync.Millrace, run: Run) -> None:
    one, ledger = ledger_at(tmp_path, "one")
    pipeline = stepped(plain(one), judged(Step(name="last", python="steps.py:kept")), one="last")
    m.queue("orders", keyed=True, retention="log").publish_many(ORDERS)
    with sync.share(m):
        run(pipeline)
    assert len(ledger.lines()) == 1
    assert letters(m) == WANTED


@pytest.mark.parametrize("by_job", [False, True], ids=["redrive", "job"])
def test_letters_go_back_and_through_the_mended_step(
    tmp_path: Path,
    m: sync.Millrace,
    setting: Setting,
    spark: SparkSession,
    run: Run,
    *,
    by_job: bool,
) -> None:
    one, ledger = ledger_at(tmp_path, "one", key=("id",))
    sql = f"SELECT seq, op, hex(key) AS id, {AMOUNT} AS amount FROM source"
    pipeline = stepped(plain(one), judged(Step(name="last", sql=sql)), one="last")
    queue = m.queue("orders", keyed=True, retention="log")
    queue.publish_many(ORDERS)
    with sync.share(m):
        run(pipeline)
        bad = m.find("bad")
        if by_job:
            site = JobContext(m, spark, Where(path=str(tmp_path / "data")))
            tried = try_transform(site, bad, LetterTransform())
            assert {row["dead_queue"] for row in tried.before} == {"default/orders"}
            assert {row["dead_reason"] for row in tried.before} == {"amount"}
            assert redrive(site, bad, LetterTransform()).letters == 2
        else:
            assert bad.redrive().run().moved == 2
        assert bad.stats()["live"] == 0
        assert {row.key: (row.body, row.headers) for row in queue.peek(10)} == {
            message.key: (message.body, tuple(message.headers)) for message in ORDERS
        }
        mended = judged(
            Step(name="last", sql=sql.replace(AMOUNT, f"cast(abs(int({AMOUNT})) AS string)"))
        )
        pipeline = msgspec.structs.replace(pipeline, steps=(mended,))
        run_pipeline(pipeline, setting, once=True, on_change="resume", spark=spark)
        assert sorted(str(line["id"]) for line in ledger.lines()) == ["FF31", "FF32", "FF33"]
        found = {one.sink: one for one in verify_pipeline(pipeline, setting, spark)}
        assert (found["one"].method, found["one"].is_right) == ("rows", True)
        assert bad.stats()["live"] == 0


@pytest.mark.parametrize("shape", ["select", "function"])
def test_plans_of_a_server_of_spark_connect_are_not_looked_into(
    tmp_path: Path, spark: SparkSession, shape: str
) -> None:
    one, _ = ledger_at(tmp_path, "one")
    pipeline = stepped(plain(one), judged(SHAPES[shape]), one="last")
    check_letters(pipeline, Setting(), spark)
    far = msgspec.structs.replace(pipeline, spark={"spark.remote": "sc://nowhere:1"})
    with pytest.raises(Invalid, match="lost in Spark Connect"):
        check_letters(far, Setting(), spark)
    keeping = judged(Step(name="last", sql=f"SELECT *, {AMOUNT} amount FROM source"))
    check_letters(msgspec.structs.replace(far, steps=(keeping,)), Setting(), spark)


def test_the_command_refuses_a_step_that_loses_its_messages(tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    file.write_text(
        f"""
name = "orders"
[source]
queue = "orders"
url = "http://nobody.invalid:1"
[steps.sums]
sql = "SELECT key, count(*) AS many FROM source GROUP BY key"
expect = "many > 1"
on_fail = "dead_letter"
dead_letter = "bad"
[sinks.one]
from = "sums"
kind = "{KIND}"
path = "{tmp_path / "one.db"}"
"""
    )
    command = [sys.executable, "-m", "millrace.cli", "pipeline", "validate", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode != 0
    assert "step 'sums' has dead letters" in result.stderr, result.stderr
    assert "lost in Aggregate" in result.stderr
