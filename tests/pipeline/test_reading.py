"""Declarations: what is wrong is named by file, line, table and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import sync
from millrace.errors import Invalid
from millrace.pipeline import (
    DeclaredSink,
    Limit,
    Pipeline,
    Run,
    Setting,
    Source,
    Step,
    read_pipeline,
    run_pipeline,
)
from millrace.pipeline.variable import hide, names_in
from tests.pipeline.ledger import Ledger
from tests.pipeline.scene import KIND

SINK = f"""
[sinks.one]
kind = "{KIND}"
path = "$LEDGER"
"""
HEAD = 'name = "orders"\n[source]\nqueue = "orders"\n'


def read(folder: Path, text: str) -> Pipeline:
    path = folder / "orders.toml"
    path.write_text(text)
    return read_pipeline(path, {"LEDGER": "there.db"})


def test_the_environment_is_that_of_the_process_by_default(
    tmp_path: Path, m: sync.Millrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "orders.toml"
    path.write_text(f"{HEAD}{SINK}")
    monkeypatch.delenv("LEDGER", raising=False)
    with pytest.raises(Invalid, match="LEDGER, which is not set"):
        read_pipeline(path)
    monkeypatch.setenv("LEDGER", str(tmp_path / "there.db"))
    m.queue("orders").publish(b"tea")
    run_pipeline(read_pipeline(str(path)), Setting(millrace=m), once=True)
    assert [line["value"] for line in Ledger(path=str(tmp_path / "there.db")).lines()] == ["tea"]
    assert "there.db" not in repr(Setting())


def test_a_file_and_a_program_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("def totals(parsed):\n    return parsed\n")
    found = read(
        tmp_path,
        f"""
name = "orders"

[source]
queue = "orders"
limit = {{ rows = 500 }}

[sources.customers]
queue = "customers"
view = "latest"

[steps.parsed]
sql = "SELECT * FROM source"
expect = "amount > 0"
on_fail = "dead_letter"
dead_letter = "orders-bad"

[steps.totals]
python = "steps.py:totals"

[sinks.one]
from = "totals"
kind = "{KIND}"
path = "$LEDGER"
key = ["id"]

[run]
every = 0.1

[spark]
"spark.master" = "local[1]"
""",
    )
    assert found == Pipeline(
        name="orders",
        source=Source(queue="orders", limit=Limit(rows=500)),
        sources={"customers": Source(queue="customers", view="latest")},
        steps=(
            Step(
                name="parsed",
                sql="SELECT * FROM source",
                expect={"expect": "amount > 0"},
                on_fail="dead_letter",
                dead_letter="orders-bad",
            ),
            Step(name="totals", python="steps.py:totals"),
        ),
        sinks=(
            DeclaredSink(
                name="one", rows="totals", kind=KIND, settings={"path": "$LEDGER", "key": ["id"]}
            ),
        ),
        run=Run(every=0.1),
        spark={"spark.master": "local[1]"},
        folder=str(tmp_path),
    )
    assert "there.db" not in repr(found)


def test_a_kind_may_be_said_by_its_place(tmp_path: Path) -> None:
    found = read(tmp_path, HEAD + '[sinks.lake]\ndelta = "/lake"\nmode = "append"')
    assert found.sinks == (
        DeclaredSink(name="lake", kind="delta", settings={"path": "/lake", "mode": "append"}),
    )


WRONG = [
    ("", "name: give the pipeline a name"),
    ('name = "a b"\n[source]\nqueue = "q"' + SINK, "line 1: name: name is 'a b'"),
    ('name = "a"', "[source] source: there is no table"),
    (HEAD, "[sinks] sinks: there is no sink"),
    (HEAD + "[stray]\nx = 1", "line 4: stray: there is no 'stray'"),
    (
        HEAD + "que = 1" + SINK,
        "line 4: [source] que: there is no setting 'que'; did you mean 'queue'?",
    ),
    (HEAD + 'view = "all"' + SINK, "line 4: [source] view: 'all' is none of changes"),
    (HEAD + 'view = "latest"' + SINK, "line 4: [source] view: view 'latest' has no changes"),
    (HEAD + 'url = "http://x"\npath = "y"' + SINK, "line 4: [source] url: give url or path"),
    (HEAD + "[steps.a]\nsql = ''" + SINK, "line 5: [steps.a] sql: give sql or python"),
    (HEAD + "[steps.source]\nsql = 'x'" + SINK, "[steps.source] name: there is a view 'source'"),
    (HEAD + "[steps.a-b]\nsql = 'x'" + SINK, "[steps.a-b] name: 'a-b' is no name of a view"),
    (HEAD + "[steps.a]\npython = 'x'" + SINK, "line 5: [steps.a] python: python is 'x'"),
    (HEAD + "[steps.a]\npython = 'x.py:f'" + SINK, "line 5: [steps.a] python: "),
    (
        HEAD + "[steps.a]\nsql = 'x'\nexpect = 'y'\non_fail = 'dead_letter'" + SINK,
        "[steps.a] dead_letter: on_fail is dead_letter",
    ),
    (
        HEAD + "[steps.a]\nsql = 'x'\ndead_letter = 'y'" + SINK,
        "line 6: [steps.a] dead_letter: dead_letter is for conditions",
    ),
    (
        HEAD + SINK + "null_key = 'dead_letter'",
        "[sinks.one] dead_letter: null_key is dead_letter; name the queue",
    ),
    (
        HEAD + SINK + "dead_letter = 'bad'",
        "line 8: [sinks.one] dead_letter: dead_letter is for rows without a key",
    ),
    (
        HEAD + SINK + "null_key = 'dead_letter'\ndead_letter = 'bad'",
        "line 8: [sinks.one] null_key: null_key is for sinks with a key",
    ),
    (HEAD + SINK + "null_key = 'drop'", "line 8: [sinks.one] null_key: 'drop' is none of refuse"),
    (HEAD + SINK + 'from = "x"', "[sinks.one] from: from is 'x'; there are source"),
    (HEAD + SINK + "pathos = 1", "line 8: [sinks.one] pathos: sink "),
    (HEAD + "[sinks.one]\npath = 'x'", "line 4: [sinks.one] kind: a sink has a kind"),
    (HEAD + "[sinks.one]\nkind = 'x'", "line 5: [sinks.one] kind: there is no sink 'x'"),
    (HEAD + SINK.replace("LEDGER", "NONE"), "[sinks.one] path: path names the variable NONE"),
    (HEAD + SINK + "[run]\nevery = -1", "line 9: [run] every: every is less than 0"),
    (HEAD + SINK + "[run]\nevery = 'x'", "line 9: [run] every: it is text in quotes"),
    (HEAD + "limit = 5" + SINK, "line 4: [source] limit: it is a whole number, and should be"),
    (HEAD + 'url = "localhost:7070"' + SINK, "line 4: [source] url: write http://localhost:7070"),
    (HEAD + "[sinks.a]\nqueue = 'b'", "line 4: [sinks.a] url: give the url of a server"),
    (HEAD + "[sinks.a]\npostgres = 'postgresql:'", "[sinks.a] table: sink 'postgres': the setting"),
    (HEAD + SINK + "[spark]\n'x' = 1", '[spark] x: write 1 in quotes, as "1"'),
    (HEAD + SINK + "[spark]\nspark.master = 'local'", 'stand in quotes: "spark.master"'),
    (
        HEAD + SINK + "[run]\ncheckpoint = 'c'\n[spark]\n'spark.remote' = 'sc://far'",
        "line 9: [run] checkpoint: a checkpoint is for steps that keep a state",
    ),
    (
        HEAD + SINK + "[spark]\n'spark.remote' = 'sc://far'\n'spark.master' = 'local'",
        "[spark] spark.master: spark.remote names a server",
    ),
    ("name = ", "is no TOML"),
]


@pytest.mark.parametrize(("text", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(Invalid) as caught:
        read(tmp_path, text)
    assert said in caught.value.message
    assert str(tmp_path / "orders.toml") in caught.value.message
    assert caught.value.field


def test_values_of_variables_are_hidden() -> None:
    environ = {"PG": "postgresql://me:secret@host/db", "SHORT": "a"}
    names = names_in({"url": "$PG", "more": ["${SHORT}", "$$PRICE"]})
    assert names == {"PG", "SHORT"}
    said = f"cannot reach {environ['PG']}, a http://you:word@there"
    assert hide(said, names, environ) == "cannot reach $PG, a http://you:…@there"
