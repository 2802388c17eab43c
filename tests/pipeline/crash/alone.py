"""The command line of a scene that has a folder of its own."""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.pipeline.crash.victim import Folder

Play = Callable[[Path, int, Folder, int], str]
"""Plays so many rounds in a folder, by a seed; returns what was seen in them."""


def alone(description: str | None, play: Play) -> None:
    """Play what the command line says, and print what was seen."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=None)
    told = parser.parse_args()
    seed = random.SystemRandom().getrandbits(32) if told.seed is None else told.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = Folder(Path(folder) / "data")
        try:
            seen = play(Path(folder), seed, home, told.rounds)
        finally:
            home.close()
    print(f"{told.rounds} rounds{seen}")
