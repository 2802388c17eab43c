"""Progress of long work: on the error stream, and only if that is a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class Bar:
    """A bar that grows to `total`; without one, it only shows that something happens."""

    def __init__(self, what: str, *, total: float | None) -> None:
        self._what = what
        self._total = total
        self._progress: Progress | None = None

    def __enter__(self) -> Bar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._progress = Progress(console=Console(stderr=True), transient=True)
            self._progress.start()
            self._progress.add_task(self._what, total=self._total)
        return self

    def advance(self, by: float) -> None:
        """So much more is done."""
        if self._progress is not None:
            self._progress.advance(self._progress.task_ids[0], by)

    def reach(self, done: float, total: float) -> None:
        """So much of so much is done."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=done, total=total)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
