"""Threads that decode to a type for the first time, all at once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from millrace.decoding import convert
from tests.support.timeouts import scaled

SOURCE = Path(__file__).resolve().parents[1] / "src" / "millrace"

AT_ONCE = """
import sys, threading, types
from millrace.decoding import convert, json_decoder

sys.setswitchinterval(1e-6)

SOURCE = "import msgspec\\nclass K0(msgspec.Struct):\\n    a: int\\n    b: str\\n"
for depth in range(1, 9):
    fields = "".join(f"    f{at}: 'K{depth - 1} | None' = None\\n" for at in range(5))
    SOURCE += f"class K{depth}(msgspec.Struct):\\n{fields}"


def use(kind, barrier, number):
    barrier.wait()
    if number % 2:
        json_decoder(kind)
    else:
        convert({"f0": {"f0": {}}}, kind)


for number in range(60):
    module = sys.modules[f"kinds{number}"] = types.ModuleType(f"kinds{number}")
    exec(SOURCE, vars(module))
    barrier = threading.Barrier(3)
    threads = [threading.Thread(target=use, args=(module.K8, barrier, at)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("alive")
"""


@pytest.mark.process
def test_threads_find_out_about_types_one_after_the_other() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_ONCE],
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(120),
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_nobody_else_makes_decoders_of_types_of_ours() -> None:
    """Plain types (`dict`, `list`) are known to msgspec; of a TypedDict it remembers nothing."""
    own = re.compile(
        r"msgspec\.(?:json|msgpack)\.Decoder\((?!\)|_record)|msgspec\.convert\("
        r"|msgspec\.(?:json|msgpack)\.decode\(.*type=(?!dict|list)"
    )
    found = [
        f"{path.relative_to(SOURCE)}:{number}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.name != "decoding.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if own.search(line)
    ]
    assert found == []


def test_a_text_that_is_no_utf_8_is_a_validation_error() -> None:
    with pytest.raises(msgspec.ValidationError, match="no UTF-8"):
        convert({"\udc80": "\udc80"}, dict[str, int])
