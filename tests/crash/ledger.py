"""The outside ledger: what was tried and answered, against what is there after a crash.

It lives in another process than the engine, and learns of every attempt before it is made and of
every acknowledgement after it was given (`events.py`). When the engine is opened again, the program
shows all queues before anything else happens; from that moment on everything unknown is decided.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.crash.book import Book, Fate, Message, Sending
from tests.crash.events import (
    Answer,
    AnyAnswer,
    AnyAttempt,
    AnyEvent,
    Ask,
    Attempt,
    Closed,
    Commit,
    Done,
    Drop,
    DropStage,
    Duty,
    End,
    Ended,
    Extend,
    Fill,
    Give,
    GoBack,
    Got,
    Look,
    LookLetters,
    LookTopic,
    Lose,
    Lost,
    Make,
    Others,
    Pull,
    Pulled,
    Purge,
    Read,
    Refused,
    Send,
    SendStage,
    Sent,
    Serving,
    Showed,
    Stage,
    Staged,
    Take,
    Tell,
    Took,
    Transact,
    WentBack,
    Wind,
)
from tests.crash.findings import Findings
from tests.crash.follower import Follower
from tests.crash.letters import Letters
from tests.crash.others import OtherQueues
from tests.crash.pools import Pools
from tests.crash.reel import Reel
from tests.crash.scene import Shape
from tests.crash.stages import Stages
from tests.crash.told import Told

NUMBERS_KEPT = 64
"""Numbers of a producer that may be tried again; the queue itself remembers 32."""

EXPECTED_REFUSALS = ("full", "closed", "stale", "superseded", "fenced")
"""What this program may be refused with: there is no room, the engine was closed, a lease has run
out within a transaction, another client has opened the cursor that both follow by."""

RECEIPTS_HANDED_ON = 200
"""Leases that the next life is told of; the others run out."""


@dataclass(slots=True)
class Bundle:
    """The parts of one transaction."""

    sending: Sending | None = None
    settled: list[tuple[str, Message, int]] = field(default_factory=list)
    """Queue, message, lease call."""
    receipts: list[tuple[str, int, int]] = field(default_factory=list)
    """Of those: receipt, seq, lease call, as they were when it was tried; another call may have
    taken a message since."""
    commits: list[tuple[str, int]] = field(default_factory=list)


class Ledger:
    """Books of all queues, and what is still unknown."""

    def __init__(self, shapes: dict[str, Shape]) -> None:
        self.findings = Findings()
        self.counts: Counter[str] = Counter()
        self.books = {
            name: Book(name, self.findings, keyed=shape.keyed) for name, shape in shapes.items()
        }
        self._followers = {
            name: Follower(self.books[name]) for name, shape in shapes.items() if shape.followed
        }
        self._others = OtherQueues(self.findings)
        self._letters = Letters(self.findings)
        self._told = Told(self.findings)
        self._reel = Reel(self.findings)
        self._pools = Pools(self.findings, self.counts)
        self._stages = {name: Stages(book) for name, book in self.books.items()}
        self._clock = 0
        self.life = 0
        self._tried: dict[int, tuple[AnyAttempt, int]] = {}
        """Attempts of this life without an answer, and when they were made."""
        self._sendings: dict[int, Sending] = {}
        """By op of this life."""
        self._bundles: dict[int, Bundle] = {}
        """Transactions of this life without an answer, by op."""
        self._torn: list[Bundle] = []
        """Transactions of earlier lives without an answer."""
        self._numbered: dict[tuple[str, str], dict[int, Sending]] = {}
        self._unknown: list[Sending] = []
        """Numbered publishes of earlier lives without an answer."""

    # --- What the program says -------------------------------------------------------------------

    def hear(self, event: AnyEvent) -> None:
        """Take in the next event."""
        self._clock += 1
        if self._pools.hear(event):
            return
        for book in self.books.values():
            book.clock = self._clock
        match event:
            case Look():
                self._look(event)
            case Others():
                self._others.look(event.published)
            case LookLetters():
                self._letters.look(event)
                self.counts["dead letters"] = self._letters.dead
            case LookTopic():
                self._told.look(event)
                self.counts["forwarded"] = self._told.count
            case Serving():
                self._judge_bundles()
            case Closed():
                self.counts["closed"] += 1
            case Attempt():
                self._attempt(event)
            case Answer():
                self._answer(event)

    def _attempt(self, event: AnyAttempt) -> None:
        match event:
            case Transact():
                self._bundles[event.op] = Bundle()
            case Send():
                self._send(event)
            case Stage():
                self._stages[event.queue].attempt(event)
            case SendStage():
                self._send_stage(event)
            case End():
                ending = self.books[event.queue].ending(event.calls, is_settle=event.is_settle)
                if event.op in self._bundles:
                    settled = [(event.queue, message, version) for message, version in ending]
                    self._bundles[event.op].settled += settled
                    self._bundles[event.op].receipts += [
                        (message.receipt, message.seq, version)
                        for message, version in ending
                        if message.version == version
                    ]
            case Commit():
                self._followers[event.queue].committing(event.seq)
                if event.op in self._bundles:
                    self._bundles[event.op].commits.append((event.queue, event.seq))
            case Read():
                self._followers[event.queue].asking()
            case Purge():
                for message in self.books[event.queue].present.values():
                    if not message.is_over:
                        message.purging = Fate.OPEN
            case DropStage():
                self._stages[event.queue].dropping(event.stage)
            case Make():
                self._others.make(event.queue)
            case Fill():
                self._others.fill(event.queue, event.rows)
            case Drop():
                self._others.drop(event.queue)
            case Extend():
                self._extending(event)
            case Tell():
                self._told.tell(event.tags)
            case Give():
                self._letters.give(event.tags)
            case Lose():
                self._letters.losing(event)
            case Wind():
                self._reel.wind(event.rows)
            case Take() | Ask() | Pull() | GoBack():
                pass
        if isinstance(event, Transact) or event.op not in self._bundles:
            self._tried[event.op] = (event, self._clock)

    def _send(self, event: Send) -> None:
        sending = Sending(
            event.queue,
            event.tags,
            event.keys,
            event.producer,
            event.number,
            deletes=event.deletes,
        )
        self._begin(event.op, sending)

    def _send_stage(self, event: SendStage) -> None:
        known = self._numbered.get((event.queue, event.producer), {}).get(event.number)
        if known is not None and known.stage == event.stage:
            tags = known.tags
        else:
            tags = self._stages[event.queue].tags(event.stage)
        sending = Sending(event.queue, tags, [], event.producer, event.number, stage=event.stage)
        self._begin(event.op, sending)

    def _begin(self, op: int, sending: Sending) -> None:
        """It is being sent, for the first time or once more."""
        book = self.books[sending.queue]
        known = self._numbered.setdefault((sending.queue, sending.producer), {})
        before = known.get(sending.number) if sending.producer else None
        if before is None or before.tags != sending.tags:
            self.counts["attempted"] += len(sending.tags)
            book.attempt(sending)
        else:
            sending = before
            self.counts["repeated"] += 1
            if sending.fate is Fate.NO:
                # It is known that it never came about: this is its first time.
                book.attempt(sending)
        self._remember(op, sending)

    def _remember(self, op: int, sending: Sending) -> None:
        self._sendings[op] = sending
        if op in self._bundles:
            self._bundles[op].sending = sending
        if sending.producer:
            known = self._numbered[sending.queue, sending.producer]
            known[sending.number] = sending
            while len(known) > NUMBERS_KEPT:
                del known[min(known)]

    # --- What it was answered --------------------------------------------------------------------

    def _answer(self, event: AnyAnswer) -> None:
        attempt, since = self._tried.pop(event.op)
        self.counts["answers"] += 1
        match event, attempt:
            case Sent(), Send() | SendStage() | Transact():
                self._sent(event)
                self._finish_bundle(event.op)
            case Refused(), _:
                self.counts["refused"] += 1
                self._refused(event.op, attempt, event.code)
            case Sent(), Wind():
                self._reel.wound(event.first, event.count)
            case Pulled(), Pull():
                self._reel.pulled(event.seqs, attempt.count)
                self.counts["pulled"] += len(event.seqs)
            case WentBack(), GoBack():
                self._reel.went_back(event.first)
                self.counts["rewound"] += 1
            case Staged(), Stage():
                self._stages[attempt.queue].staged(attempt, event.rows)
            case Took(), Take():
                self.counts["leased"] += len(event.rows)
                book = self.books[attempt.queue]
                book.took(event, attempt.at_ms, attempt.lease_ms, since)
            case Ended(), End():
                self._ended(attempt, event, since)
            case Ended(), Extend():
                self._extended(attempt, event)
            case Done(), Tell():
                self._told.told(attempt.tags, Fate.YES)
            case Done(), Give():
                self._letters.given(attempt.tags, Fate.YES)
            case Got(), Ask():
                self._letters.got(event.tags)
            case Lost(), Lose():
                self._letters.lost(attempt, event.refused)
            case Done(), Make():
                self._others.made(attempt.queue)
            case Done(), Fill():
                self._others.filled(attempt.queue)
            case Done(), Drop():
                self._others.dropped(attempt.queue)
            case Showed(), Read():
                self.counts["shown"] += len(event.rows)
                self._followers[attempt.queue].show(event)
            case Done(), Commit():
                self._followers[attempt.queue].done(attempt.seq)
            case Done(), DropStage():
                self._stages[attempt.queue].dropped(attempt.stage)
            case Done(), Purge():
                for message in self.books[attempt.queue].present.values():
                    if message.purging is Fate.OPEN:
                        message.purging = Fate.YES
            case _:
                raise AssertionError(f"{event} does not answer {attempt}")

    def _sent(self, event: Sent) -> None:
        sending = self._sendings.pop(event.op)
        book = self.books[sending.queue]
        self._stages[sending.queue].sent(sending.stage)
        if sending.fate is Fate.OPEN:
            self.counts["acknowledged"] += len(sending.tags)
        if event.first == 0:
            known = self._numbered[sending.queue, sending.producer]
            is_old = sending.number + NUMBERS_KEPT // 2 <= max(known)
            if sending.fate is not Fate.YES or not is_old:
                book.fault(
                    "misjudged",
                    f"{sending.producer}/{sending.number} was answered without its seqs",
                )
            return
        if event.count != len(sending.tags):
            book.fault("torn", f"{len(sending.tags)} were sent, {event.count} answered")
        book.apply(sending, event.first)

    def _finish_bundle(self, op: int) -> None:
        bundle = self._bundles.pop(op, None)
        if bundle is None:
            return
        self.counts["transactions"] += 1
        for queue, message, version in bundle.settled:
            self.counts["settled"] += 1
            self.books[queue].ended(message, version, 0, is_settle=True)
        for queue, seq in bundle.commits:
            self._followers[queue].done(seq)

    def _refused(self, op: int, attempt: AnyAttempt, code: str) -> None:
        sending = self._sendings.pop(op, None)
        bundle = self._bundles.pop(op, None)
        if code not in EXPECTED_REFUSALS:
            self.findings.add("misjudged", f"{attempt} was refused as {code}")
        if sending is not None:
            self.books[sending.queue].refuse(sending, code)
        if bundle is not None:
            for _, message, _ in bundle.settled:
                if message.settling is Fate.OPEN:
                    message.settling = Fate.NO
            for queue, seq in bundle.commits:
                self._followers[queue].not_done(seq)
        if isinstance(attempt, Stage):
            self._stages[attempt.queue].refused(attempt)
        if isinstance(attempt, Tell):
            self._told.told(attempt.tags, Fate.NO)
        self._reel.refused(attempt)
        if isinstance(attempt, Give):
            self._letters.given(attempt.tags, Fate.NO)
        if isinstance(attempt, Lose):
            self._letters.lost(attempt, attempt.tags)

    def _ended(self, attempt: End, event: Ended, since: int) -> None:
        book = self.books[attempt.queue]
        is_settle = attempt.is_settle
        for seq, version in attempt.calls:
            message = book.placed.get(seq)
            code = event.refused.get(seq)
            if message is None:
                if code is not None and is_settle and seq in book.settled:
                    book.fault("misjudged", f"{seq} was settled, and is {code} now")
                continue
            if code is None:
                self.counts["settled"] += is_settle
                book.ended(message, version, since, is_settle=is_settle)
            else:
                book.not_ended(message, version, code, event.at_ms, is_settle=is_settle)

    def _extending(self, attempt: Extend) -> None:
        """It may come about without an answer, and it may make a lease shorter."""
        book = self.books[attempt.queue]
        for seq, _ in attempt.calls:
            message = book.placed.get(seq)
            if message is not None:
                until_ms = attempt.at_ms + attempt.lease_ms
                message.until_ms = min(message.until_ms, until_ms)

    def _extended(self, attempt: Extend, event: Ended) -> None:
        book = self.books[attempt.queue]
        for seq, version in attempt.calls:
            message = book.placed.get(seq)
            if message is None or seq in event.refused:
                continue
            if message.version > version:
                book.fault("misjudged", f"{seq} was extended though another call had taken it")
            # The time may run from the moment of the call, but not from before it.
            message.until_ms = attempt.at_ms + attempt.lease_ms

    # --- Life after life -------------------------------------------------------------------------

    def _look(self, look: Look) -> None:
        book = self.books[look.queue]
        book.look(look)
        self._stages[look.queue].look(look, self._numbered)
        follower = self._followers.get(look.queue)
        if follower is not None:
            follower.begin(look.cursor)
        book.forget(look.cursor)

    def _judge_bundles(self) -> None:
        """Every queue was looked at: what of each unanswered transaction came about?"""
        for bundle in self._torn:
            # A message that a later call had taken was settled by that call.
            parts = [
                message.settling is Fate.YES and message.settled_by == version
                for _, message, version in bundle.settled
            ]
            if bundle.sending is not None:
                parts.append(bundle.sending.fate is Fate.YES)
            parts += [self._followers[queue].committed >= seq for queue, seq in bundle.commits]
            if len(set(parts)) > 1:
                self.findings.add("torn", f"a transaction of {len(parts)} parts: {parts}, {bundle}")
            self.counts["transactions resolved"] += 1
        self._torn.clear()
        self._unknown.clear()

    def end_life(self, *, seed: int) -> Duty:
        """The process is no more. What it tried and was not answered is UNKNOWN from now on."""
        self.life += 1
        self._pools.end_life()
        self.counts["unknown"] += len(self._tried)
        for attempt, _ in self._tried.values():
            self._reel.leave(attempt)
        bundled = {id(b.sending) for b in self._bundles.values()}
        for sending in self._sendings.values():
            if sending.fate is Fate.OPEN and sending.producer and id(sending) not in bundled:
                self._unknown.append(sending)
        self._torn += self._bundles.values()
        self._tried.clear()
        self._sendings.clear()
        self._bundles.clear()
        # Also those of transactions: power may go while the next life looks, and has said of one
        # queue alone what came about.
        again = {id(sending) for sending in self._unknown}
        again |= {id(bundle.sending) for bundle in self._torn}
        return Duty(
            life=self.life,
            seed=seed,
            sends=[_again(sending) for sending in self._unknown if not sending.stage],
            stages=[
                SendStage(0, s.queue, s.stage, s.producer, s.number)
                for s in self._unknown
                if s.stage
            ],
            transactions=[
                (bundle.receipts, _again(bundle.sending))
                for bundle in self._torn
                if bundle.sending is not None and bundle.sending.producer
            ],
            receipts=self._receipts(),
            numbers={
                f"{queue}/{producer}": _last(known, again)
                for (queue, producer), known in self._numbered.items()
                if producer
            },
        )

    def _receipts(self) -> list[tuple[str, str, int, int, bool]]:
        bundled = {message.tag for bundle in self._torn for _, message, _ in bundle.settled}
        found = [
            (
                book.name,
                message.receipt,
                message.seq,
                message.version,
                message.settling is Fate.OPEN,
            )
            for book in self.books.values()
            for message in book.placed.values()
            if message.receipt
            and message.settling is not Fate.YES
            and message.tag not in bundled
            and not message.superseded_at
            and message.purging is Fate.NO
        ]
        # Those that may have been settled come first.
        found.sort(key=lambda receipt: not receipt[4])
        return found[:RECEIPTS_HANDED_ON]


def _last(known: dict[int, Sending], again: set[int]) -> int:
    """The last number that may have been used up, or will be when it is sent again; one that was
    not, another message may have."""
    used = [s.number for s in known.values() if s.fate is not Fate.NO or id(s) in again]
    return max(used, default=0)


def _again(sending: Sending) -> Send:
    return Send(
        0,
        sending.queue,
        sending.tags,
        sending.keys,
        sending.deletes,
        sending.producer,
        sending.number,
    )
