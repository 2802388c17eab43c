"""Targets that fail on purpose, each in another way: the runner must report all of them."""

from __future__ import annotations

import os
import signal
import sys
from random import Random

from tests.fuzz.run import Target, main

LATE = 20
"""Cases that pass before the failure."""

_passed: list[int] = []
_kept: list[bytes] = []


def _is_late() -> bool:
    _passed.append(1)
    return len(_passed) > LATE


def good(rng: Random) -> None:
    """Accept everything."""
    assert rng.random() < 1


def raises(rng: Random) -> None:
    """Raise an error that no parser should."""
    assert not _is_late(), rng.random()


def crashes(rng: Random) -> None:
    """End as a read outside of a buffer does."""
    if _is_late():
        os.kill(os.getpid(), signal.SIGSEGV)


def bursts(rng: Random) -> None:
    """Take a gigabyte for one input and free it."""
    if _is_late():
        block = bytearray(1 << 30)
        for at in range(0, len(block), 4096):
            block[at] = 1


def leaks(rng: Random) -> None:
    """Keep something of every input."""
    # Few cases are enough, however slow the machine is.
    _kept.append(b"x" * (4 << 20))
    if len(_kept) > 120:
        _kept[-1] = b""


TARGETS: dict[str, Target] = {
    target.__name__: target for target in (good, raises, crashes, bursts, leaks)
}

if __name__ == "__main__":
    sys.exit(main(TARGETS))
