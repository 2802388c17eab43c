"""What was decided ahead of its commit: the entries in flight, and the answers that wait for them.

Rule 1: an answer waits for the newest entry that it was judged by.
Rule 2: when entries are dropped, whoever is at fault is told so, and the others are decided again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from millrace.core.decide import Answer
from millrace.core.model import Index
from millrace.engine.request import Request
from millrace.errors import Corrupt, Fatal, Full, MillraceError, Refused, Retry, TooLarge

Result = Answer | Refused | Retry | Corrupt

Answers = list[tuple[Request, Result]]
"""Who is told what, once it may be told."""


@dataclass(slots=True)
class _Flight:
    """An entry that is not committed, and the answers that wait for it."""

    index: Index
    size: int
    answers: Answers


class InFlightEntries:
    """The entries of one host that are not committed, oldest first."""

    def __init__(self) -> None:
        self._flight: deque[_Flight] = deque()
        self.answers = 0
        """How many wait."""
        self.bytes = 0
        """About what the entries take of the log's room."""

    def __bool__(self) -> bool:
        return bool(self._flight)

    def add(self, index: Index, answers: Answers) -> None:
        """An entry is about to be appended; these wait for it."""
        size = sum([request.size for request, _ in answers])
        self.bytes += size
        self.answers += len(answers)
        self._flight.append(_Flight(index, size, answers))

    def join(self, answers: Answers) -> bool:
        """Let these wait for the newest entry; False if there is none, and they need not."""
        if not self._flight:
            return False
        self.answers += len(answers)
        self._flight[-1].answers.extend(answers)
        return True

    def is_next(self, index: Index) -> bool:
        """Whether the oldest entry has this index."""
        return bool(self._flight) and self._flight[0].index == index

    def land(self) -> Answers:
        """The oldest entry is committed; returns who may be answered now."""
        return self._forget(self._flight.popleft()).answers

    def drop(self, first: Index, error: MillraceError, *, may_repeat: bool) -> list[Request]:
        """The entries from `first` on were not accepted; returns who is decided again.

        When the log is full, whoever asked for room is told so; the others, who came to the same
        entry or to a later one, are decided again: what frees space must not suffer for it.
        """
        lost: deque[_Flight] = deque()
        while self._flight and self._flight[-1].index >= first:
            lost.appendleft(self._forget(self._flight.pop()))
        if isinstance(error, TooLarge) and lost and len(lost[0].answers) > 1:
            # None of them is at fault alone.
            error = Full("too much was asked at once; send again", field="record")
        again: list[Request] = []
        for flight in lost:
            is_first = flight is lost[0]
            has_grown = any(request.grows for request, _ in flight.answers)
            for request, _ in flight.answers:
                is_at_fault = is_first and (request.grows or not has_grown)
                if is_at_fault or not may_repeat or not isinstance(error, Full):
                    request.fail(error)
                else:
                    again.append(request)
        return again

    def fail(self, error: Fatal) -> None:
        """Nothing that is in flight is committed, as far as anyone knows: all are told."""
        flight, self._flight = self._flight, deque()
        self.bytes = self.answers = 0
        for lost in flight:
            for request, _ in lost.answers:
                request.fail(error)

    def _forget(self, flight: _Flight) -> _Flight:
        self.bytes -= flight.size
        self.answers -= len(flight.answers)
        return flight
