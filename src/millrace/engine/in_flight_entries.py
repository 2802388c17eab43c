"""Entries in flight: appended but not committed, with the answers that wait for them.

Rule 1: an answer waits for the newest entry that it depends on.
Rule 2: when entries are dropped, the requests at fault fail, and the others are decided again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from millrace.core.decide import Answer
from millrace.core.model import Index
from millrace.engine.command_request import CommandRequest
from millrace.errors import Corrupt, Fatal, Full, MillraceError, Refused, Retry, TooLarge

Decision = Answer | Refused | Retry | Corrupt

PendingAnswers = list[tuple[CommandRequest, Decision]]
"""Requests and their results, to be delivered once the entry is committed."""


@dataclass(slots=True)
class _InFlightEntry:
    """An uncommitted entry and the answers that wait for it."""

    index: Index
    size: int
    answers: PendingAnswers


class InFlightEntries:
    """The uncommitted entries of one commit loop, oldest first."""

    def __init__(self) -> None:
        self._flight: deque[_InFlightEntry] = deque()
        self.answers = 0
        """Number of waiting answers."""
        self.bytes = 0
        """Approximate bytes that the entries take in the log."""

    def __bool__(self) -> bool:
        return bool(self._flight)

    def add(self, index: Index, answers: PendingAnswers) -> None:
        """Add an entry that is about to be appended, with its answers."""
        size = sum([request.size for request, _ in answers])
        self.bytes += size
        self.answers += len(answers)
        self._flight.append(_InFlightEntry(index, size, answers))

    def join(self, answers: PendingAnswers) -> bool:
        """Let answers wait for the newest entry; return False if none is in flight."""
        if not self._flight:
            return False
        self.answers += len(answers)
        self._flight[-1].answers.extend(answers)
        return True

    def is_next(self, index: Index) -> bool:
        """Return True if the oldest entry has this index."""
        return bool(self._flight) and self._flight[0].index == index

    def land(self) -> PendingAnswers:
        """Remove the oldest entry, which is committed, and return its answers."""
        return self._forget(self._flight.popleft()).answers

    def drop(self, first: Index, error: MillraceError, *, may_repeat: bool) -> list[CommandRequest]:
        """Drop the entries from `first` on, and return the requests to decide again.

        If the log is full, only the requests that grow in the first dropped entry fail. The others
        are decided again, because commands that free space must not suffer from a full log.
        """
        lost: deque[_InFlightEntry] = deque()
        while self._flight and self._flight[-1].index >= first:
            lost.appendleft(self._forget(self._flight.pop()))
        if isinstance(error, TooLarge) and lost and len(lost[0].answers) > 1:
            # No single request is at fault.
            error = Full("too much was asked at once; send again", field="record")
        again: list[CommandRequest] = []
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
        """Fail all requests: whether their entries are committed is unknown."""
        flight, self._flight = self._flight, deque()
        self.bytes = self.answers = 0
        for lost in flight:
            for request, _ in lost.answers:
                request.fail(error)

    def _forget(self, flight: _InFlightEntry) -> _InFlightEntry:
        self.bytes -= flight.size
        self.answers -= len(flight.answers)
        return flight
