"""The codemod moves modules and renames what they define, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools.codemod import Conflict, Table, difference, merge, rewrite_python, rewrite_text

ROOT = Path(__file__).resolve().parents[2]

TABLE = Table(
    {"millrace.log": "millrace.wal", "millrace.shard.host": "millrace.engine.loop"},
    {("millrace.shard.host", "Host"): "CommitLoop", ("millrace.core.view", "keep"): "hold"},
    frozenset(
        {
            "millrace",
            "millrace.log",
            "millrace.log.record",
            "millrace.shard",
            "millrace.shard.host",
            "millrace.core",
            "millrace.core.view",
            "tests",
            "tests.log",
        }
    ),
)


def rewritten(text: str, module: str = "millrace.other") -> str:
    return rewrite_python(text, TABLE, module)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from millrace.log.record import A, B\n", "from millrace.wal.record import A, B\n"),
        ("import millrace.log.record\n", "import millrace.wal.record\n"),
        ("import millrace.log as log\n", "import millrace.wal as log\n"),
        ("from millrace import log\nlog.x(log)\n", "from millrace import wal\nwal.x(wal)\n"),
        ("from millrace import log as l\nl.x()\n", "from millrace import wal as l\nl.x()\n"),
        (
            "import millrace\nmillrace.shard.host.Host()\n",
            "import millrace\nmillrace.engine.loop.CommitLoop()\n",
        ),
        (
            "from millrace.shard import host\nhost.Host(host=1)\n",
            "from millrace.engine import loop\nloop.CommitLoop(host=1)\n",
        ),
        (
            "from millrace.shard.host import Host, other\ndef f(h: Host) -> 'Host | None': ...\n",
            "from millrace.engine.loop import CommitLoop, other\n"
            "def f(h: CommitLoop) -> 'CommitLoop | None': ...\n",
        ),
        (
            "from millrace.shard.host import Host as H\nH()\n",
            "from millrace.engine.loop import CommitLoop as H\nH()\n",
        ),
        (
            "x = import_module('millrace.log.record')\n",
            "x = import_module('millrace.wal.record')\n",
        ),
        ("# see log/record.py and `Host`\n", "# see wal/record.py and `Host`\n"),
        (
            "def f():\n    from millrace.shard.host import Host\n    return Host()\n",
            "def f():\n    from millrace.engine.loop import CommitLoop\n    return CommitLoop()\n",
        ),
    ],
)
def test_what_is_imported_and_used_is_renamed(before: str, after: str) -> None:
    assert rewritten(before) == after


@pytest.mark.parametrize(
    "text",
    [
        'logging.getLogger("millrace.log")\n',
        "from millrace.core.view import other\nkeep = 1\n",
        "def f(Host): return Host\n",
        "x.Host()\n",
        "from millrace.errors import Host\nHost()\n",
    ],
)
def test_what_only_looks_alike_stays(text: str) -> None:
    assert rewritten(text) == text


def test_a_name_of_an_inner_scope_is_another() -> None:
    before = (
        "from millrace.core.view import keep\n"
        "def f(keep):\n    return keep\n"
        "def g():\n    keep(1)\n    def h():\n        return keep\n    return h\n"
        "class C:\n    keep = 1\n    def m(self):\n        return keep(self.keep)\n"
    )
    after = (
        "from millrace.core.view import hold\n"
        "def f(keep):\n    return keep\n"
        "def g():\n    hold(1)\n    def h():\n        return hold\n    return h\n"
        "class C:\n    keep = 1\n    def m(self):\n        return hold(self.keep)\n"
    )
    assert rewritten(before) == after


def test_the_module_that_defines_a_name_renames_it() -> None:
    before = "class Host:\n    x: 'Host'\n\n    def f(self) -> Host:\n        return Host()\n"
    after = before.replace("Host", "CommitLoop")
    assert rewritten(before, "millrace.shard.host") == after


def test_documents_follow() -> None:
    text = (
        "[It](../../src/millrace/log/record.py), `millrace.log.record`, [all](src/millrace/log/)."
    )
    assert rewrite_text(text, TABLE) == text.replace("/log/", "/wal/").replace(".log.", ".wal.")


def test_a_mutant_is_the_difference_of_whole_lines_that_stand_once() -> None:
    clean = "a\nb\nc\nb\n"
    old, new = difference(clean, "a\nb\nc\nB\n")
    assert (clean.count(old), clean.replace(old, new)) == (1, "a\nb\nc\nB\n")
    old, new = difference(clean, "a\nb\nb\n")
    assert (clean.count(old), clean.replace(old, new)) == (1, "a\nb\nb\n")


def test_a_mutant_that_changes_nothing_is_refused() -> None:
    with pytest.raises(Conflict):
        difference("a\n", "a\n")


MUTANT = """# A list.

[[mutant]]
name = "one"
why = "because"
file = "shard/host.py"
old = "    return Host()\\n"
new = "    return None\\n"
tests = ["tests/log/test_it.py::test_one"]
"""


@pytest.mark.process
def test_a_repository_is_moved_with_its_mutants(tmp_path: Path) -> None:
    files = {
        "src/millrace/__init__.py": "",
        "src/millrace/log/__init__.py": "",
        "src/millrace/log/record.py": "A = 1\n",
        "src/millrace/shard/__init__.py": "",
        "src/millrace/shard/host.py": "class Host: ...\n\ndef make() -> Host:\n    return Host()\n",
        "tests/log/test_it.py": "from millrace.shard.host import Host\n",
        "tests/mutants/mutants.toml": MUTANT,
        "README.md": "The log is `src/millrace/log/record.py`.\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for words in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    table = tmp_path / "table.toml"
    table.write_text(
        '[modules]\n"millrace.log" = "millrace.wal"\n"millrace.shard" = "millrace.engine"\n'
        '"millrace.shard.host" = "millrace.engine.loop"\n'
        '[names]\n"millrace.shard.host:Host" = "CommitLoop"\n'
    )
    program = [sys.executable, str(ROOT / "tools" / "codemod.py"), str(table)]
    done = subprocess.run([*program, "--root", str(tmp_path)], check=True, stdout=subprocess.PIPE)
    assert b"to be read: 1" in done.stdout
    assert (tmp_path / "src/millrace/wal/record.py").read_text() == "A = 1\n"
    moved = (tmp_path / "src/millrace/engine/loop.py").read_text()
    assert moved == files["src/millrace/shard/host.py"].replace("Host", "CommitLoop")
    [mutant] = tomllib.loads((tmp_path / "tests/mutants/mutants.toml").read_text())["mutant"]
    assert mutant["file"] == "engine/loop.py"
    assert moved.count(mutant["old"]) == 1
    assert "return None" in moved.replace(mutant["old"], mutant["new"])
    assert "src/millrace/wal/record.py" in (tmp_path / "README.md").read_text()


INTO = """'''Rates.'''

from __future__ import annotations

from math import inf

from millrace import bucket
from millrace.bucket import Bucket


class Rate(Bucket):
    def take(self) -> float:
        return bucket.level(self, inf)
"""

JOINING = """'''Buckets.

They leak.
'''

from __future__ import annotations

from math import floor


# A comment.
class Bucket: ...


def level(rate: Bucket, most: float) -> float:
    return floor(most)
"""

BUCKETS = Table(
    {"millrace.bucket": "millrace.rate"},
    {},
    frozenset({"millrace", "millrace.rate", "millrace.bucket"}),
)


def as_rate(text: str, module: str = "millrace.rate") -> str:
    return rewrite_python(text, BUCKETS, module)


def test_a_merged_module_stands_before_the_one_that_needs_it() -> None:
    merged = merge(as_rate(INTO), as_rate(JOINING, "millrace.bucket"), "millrace.rate")
    assert merged.startswith("'''Rates.'''".replace("'", '"'))
    assert "millrace" not in merged
    assert "return level(self, inf)" in merged
    assert merged.index("# A comment.") < merged.index("class Rate")
    assert "# --- Buckets ---\n# They leak.\n" in merged
    names: dict[str, object] = {}
    exec(compile(merged, "rate", "exec"), names)
    assert {"Rate", "Bucket", "level", "inf", "floor"} <= names.keys()


def test_a_merged_module_stands_behind_one_that_does_not_need_it_at_once() -> None:
    calling = INTO.replace("class Rate(Bucket)", "class Rate")
    merged = merge(as_rate(calling), as_rate(JOINING, "millrace.bucket"), "millrace.rate")
    assert merged.index("class Rate") < merged.index("class Bucket")


@pytest.mark.parametrize(
    "joining",
    [
        JOINING.replace("class Bucket", "class Rate"),
        JOINING.replace("floor", "Rate"),
        JOINING + "\n\nclass Other(Rate): ...\n",
    ],
)
def test_a_merge_that_would_hide_a_name_is_refused(joining: str) -> None:
    with pytest.raises(Conflict, match=r"millrace\.rate"):
        merge(as_rate(INTO), as_rate(joining, "millrace.bucket"), "millrace.rate")


def a_repository(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], cwd=root, check=True)


def codemod(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(ROOT / "tools" / "codemod.py"), *words, "--root", str(root)]
    return subprocess.run(program, capture_output=True, text=True, check=False)


RATES = {
    "src/millrace/__init__.py": "",
    "src/millrace/rate.py": INTO,
    "src/millrace/bucket.py": JOINING,
    "tests/test_it.py": "from millrace import bucket, rate\nbucket.level(rate.Rate(), 1)\n",
    "tests/mutants/mutants.toml": MUTANT.replace("shard/host.py", "bucket.py")
    .replace("    return Host()", "    return floor(most)")
    .replace("tests/log/test_it.py", "tests/test_it.py"),
}


@pytest.mark.process
def test_a_repository_is_merged_with_its_mutants(tmp_path: Path) -> None:
    a_repository(tmp_path, RATES)
    table = tmp_path / "table.toml"
    table.write_text('[modules]\n"millrace.bucket" = "millrace.rate"\n')
    done = codemod(tmp_path, str(table))
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "src/millrace/bucket.py").exists()
    assert "rate.level(rate.Rate(), 1)" in (tmp_path / "tests/test_it.py").read_text()
    [mutant] = tomllib.loads((tmp_path / "tests/mutants/mutants.toml").read_text())["mutant"]
    assert mutant["file"] == "rate.py"
    assert (tmp_path / "src/millrace/rate.py").read_text().count(mutant["old"]) == 1


@pytest.mark.process
def test_mutants_are_refitted_to_an_edited_source(tmp_path: Path) -> None:
    """Its text had a comment that was edited since, three lines from the bug."""
    old = (
        "# A comment.\\nclass Bucket: ...\\n\\n\\ndef level(rate: Bucket, most: float) -> float:\\n"
    )
    listed = MUTANT.replace("shard/host.py", "bucket.py")
    listed = listed.replace("    return Host()", old + "    return floor(most)", 1)
    listed = listed.replace("    return None", old + "    return None")
    a_repository(tmp_path, {**RATES, "tests/mutants/mutants.toml": listed})
    source = tmp_path / "src/millrace/bucket.py"
    source.write_text(JOINING.replace("# A comment.", "# A better one."))
    done = codemod(tmp_path, "--refit", "HEAD")
    assert done.returncode == 0, done.stderr
    [mutant] = tomllib.loads((tmp_path / "tests/mutants/mutants.toml").read_text())["mutant"]
    assert source.read_text().count(mutant["old"]) == 1
    assert "return None" in source.read_text().replace(mutant["old"], mutant["new"])
    source.write_text(JOINING.replace("floor(most)", "floor(most) + 1"))
    lost = codemod(tmp_path, "--refit", "HEAD")
    assert lost.returncode == 1
    assert "by hand" in lost.stderr
