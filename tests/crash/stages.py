"""The stages of one queue: rows that are written, and must not be seen until they are published."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.crash.book import Book, Fate, Sending
from tests.crash.events import Look, Stage


@dataclass(slots=True)
class StageBook:
    """One stage."""

    tags: list[int] = field(default_factory=list)
    """Those that are known to be written."""
    maybe: list[int] = field(default_factory=list)
    """The last ones, which may have been written, all or none."""
    is_dropping: bool = False


class Stages:
    """All stages of a queue that were neither published nor dropped."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._open: dict[str, StageBook] = {}

    def attempt(self, event: Stage) -> None:
        """Rows are being written."""
        self._open.setdefault(event.stage, StageBook()).maybe = event.tags

    def staged(self, event: Stage, rows: int) -> None:
        """Rows were written; the stage has so many."""
        stage = self._open[event.stage]
        stage.tags += stage.maybe
        stage.maybe = []
        if rows != len(stage.tags):
            self._book.fault("torn", f"stage {event.stage} has {rows}, not {len(stage.tags)} rows")

    def refused(self, event: Stage) -> None:
        """Rows were not written."""
        self._open[event.stage].maybe = []

    def tags(self, name: str) -> list[int]:
        """The rows of a stage that is being published."""
        return list(self._open[name].tags)

    def dropping(self, name: str) -> None:
        """It is being dropped."""
        self._open[name].is_dropping = True

    def sent(self, name: str) -> None:
        """It was published."""
        self._open.pop(name, None)

    def dropped(self, name: str) -> None:
        """It was dropped: its rows must never be seen."""
        stage = self._open.pop(name)
        self._book.over.update(stage.tags)

    def look(self, look: Look, numbered: dict[tuple[str, str], dict[int, Sending]]) -> None:
        """Compare with the stages that are there."""
        sent = {
            sending.stage: sending.fate
            for (queue, _), known in numbered.items()
            if queue == look.queue
            for sending in known.values()
            if sending.stage
        }
        for name in look.stages.keys() - self._open.keys():
            self._book.fault("phantom", f"stage {name} is there, though it had ended")
        for name, stage in list(self._open.items()):
            rows = look.stages.get(name, 0)
            is_sent = sent.get(name) is Fate.YES
            if rows and rows == len(stage.tags) + len(stage.maybe):
                stage.tags += stage.maybe
            elif rows != len(stage.tags) and not (rows == 0 and (is_sent or stage.is_dropping)):
                self._book.fault("torn", f"stage {name} has {rows}, not {len(stage.tags)} rows")
            stage.maybe = []
            stage.is_dropping = False
            if rows and is_sent:
                self._book.fault("torn", f"stage {name} was published, and is there")
            if not rows:
                if not is_sent:
                    self._book.over.update(stage.tags)
                del self._open[name]
