"""The rules of the queue.

Rule 1: what is decided depends on the views, the command and the time given, on nothing else.
Rule 2: check first, change after. Once a change is emitted, nothing may raise.
Rule 3: this is the only file that switches on the type of a command.
Rule 4: an unknown command fails; it is never answered as if it had been done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, assert_never

from pyroaring import BitMap64

from millrace import limits
from millrace.core import (
    across,
    age,
    aside,
    attempt,
    bury,
    catalog,
    delete,
    expiry,
    explain,
    failures,
    follow,
    forward,
    lease,
    length,
    points,
    publish,
    quarantine,
    replace,
    retain,
    rotation,
    sessions,
    staged,
    topic,
    work,
)
from millrace.core.across_commands import LeaseAcross, LeasedAcross, SnapshotAcross, Vector
from millrace.core.answers import Explanation, Leased, Outcome, Published, QueueRef, SnapshotRef
from millrace.core.commands import (
    AwaitCursor,
    Bury,
    Command,
    CommitCursor,
    Configure,
    CreateQueue,
    DeleteCursor,
    DeleteQueue,
    Discard,
    DropStage,
    Explain,
    Extend,
    Found,
    Held,
    Lease,
    Locate,
    Need,
    NextSnapshot,
    OpenCursor,
    Outlived,
    Part,
    Pin,
    Publish,
    PublishStaged,
    Purge,
    Release,
    ResetCursor,
    Rewind,
    RowFacts,
    Settle,
    Stage,
    StageFacts,
    Tick,
    Transaction,
    Unpin,
    Wide,
)
from millrace.core.desk import Desk
from millrace.core.draft import Draft
from millrace.core.fold import ShardMeta
from millrace.core.holder import Holders, ListHolders
from millrace.core.leased_commands import Replace
from millrace.core.model import (
    CatalogCell,
    CursorCell,
    Kind,
    Message,
    Position,
    QueueSpec,
    Seq,
    ShardId,
)
from millrace.core.partition_commands import Delete
from millrace.core.quarantine_commands import EndQuarantine, Mend, Quarantine
from millrace.core.session_commands import (
    CloseSession,
    Delivered,
    GrantCredit,
    Granted,
    OpenSession,
    Receive,
    ResumeSession,
    SessionRef,
    SuspectSession,
)
from millrace.core.topic_cells import TopicCell
from millrace.core.topic_commands import (
    ConfigureSubscription,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    Forward,
    Forwarded,
    Subscribe,
    Subscribed,
    TopicRef,
    Unsubscribe,
)
from millrace.errors import Invalid, NotFound, Refused, Retry, TooLarge

PartAnswer = Published | Outcome | CursorCell | SnapshotRef | Position | QueueSpec | int | bool
Answer = (
    PartAnswer
    | Leased
    | LeasedAcross
    | Vector
    | QueueRef
    | CatalogCell
    | Explanation
    | SessionRef
    | Delivered
    | Granted
    | TopicRef
    | TopicCell
    | Subscribed
    | Forwarded
    | Holders
    | tuple[PartAnswer, ...]
    | None
)


def decide(desk: Desk, shard: ShardId, command: Command) -> Answer | Refused | Retry | Need:
    """Judge a command and, if it may be done, write its changes into the desk's drafts.

    `Need`: nothing was decided; fetch what it names into the view's facts and ask again.
    """
    if isinstance(command, _ACROSS):
        return _across(desk, command)
    if isinstance(command, Lease):
        view = desk.view(shard)
        if view is not None and view.quarantine:
            return quarantine.refusal(view)
        none = lease.find_none(view, command, desk.now)
        if none is not None:
            return none
    draft = desk.draft(shard)
    if draft is None:
        return work.deleted()
    match command:
        # What comes for single messages is told apart first.
        case Lease():
            return (
                lease.lease_next(draft, command)
                or attempt.again(draft, command)
                or _lease(draft, command)
            )
        case Settle():
            return work.settle(draft, command)
        case Replace():
            return replace.replace(draft, command)
        case Bury():
            return bury.bury(desk, draft, command)
        case Delete():
            return delete.delete(draft, command)
        case Quarantine():
            return quarantine.quarantine(desk, draft, command)
        case Mend():
            return quarantine.mend(draft, command)
        case EndQuarantine():
            return quarantine.end_quarantine(desk, draft, command)
        case Explain():
            return explain.explain(draft, command)
        case ListHolders():
            return retain.list_holders(draft)
        case NextSnapshot():
            return follow.next_snapshot(draft, command)
        case AwaitCursor():
            return follow.await_cursor(draft, command)
        case Tick():
            return age.do_tick(draft)
        case OpenSession():
            return sessions.open_session(draft, command)
        case ResumeSession():
            return sessions.resume_session(draft, command)
        case Receive():
            return sessions.receive(draft, command)
        case GrantCredit():
            return sessions.grant_credit(draft, command)
        case SuspectSession():
            return sessions.suspect_session(draft, command)
        case CloseSession():
            return sessions.close_session(draft, command)
        case Subscribe():
            return topic.subscribe(desk, draft, command)
        case ConfigureSubscription():
            return topic.configure_subscription(draft, command)
        case Unsubscribe():
            return topic.unsubscribe(desk, draft, command)
        case Forward():
            return forward.forward(desk, draft, command)
        case CreateTopic():
            return topic.create(desk, draft, _key(command), command)
        case ConfigureTopic():
            return topic.configure(desk, draft, _key(command), command)
        case DeleteTopic():
            return topic.delete(desk, draft, _key(command), command)
        case Found():
            return catalog.found(draft, command)
        case CreateQueue():
            return catalog.create(desk, draft, command)
        case DeleteQueue():
            return catalog.delete(desk, draft, command)
        case _:
            return _part(desk, draft, command)


_ACROSS = (Transaction, LeaseAcross, SnapshotAcross)


def _across(
    desk: Desk, command: Transaction | LeaseAcross | SnapshotAcross
) -> Answer | Refused | Retry | Need:
    match command:
        case Transaction():
            return _transaction(desk, command)
        case LeaseAcross():
            return across.lease_across(desk, command)
        case SnapshotAcross():
            return across.snapshot_across(desk, command)


def _key(command: CreateTopic | ConfigureTopic | DeleteTopic) -> bytes:
    return catalog.queue_key(command.space, command.name)


def _lease(draft: Draft, command: Lease) -> Leased | Retry | Need:
    checked = lease.check_lease(draft, command)
    if checked is not None:
        return checked
    return attempt.remember(draft, command, lease.do_lease(draft, command))


class Source(Protocol):
    """Who answers needs: a store, as of the last batch that it folded."""

    def find(self, shard: ShardId, keys: Sequence[bytes]) -> list[int]: ...
    def hidden(self, shard: ShardId, low: int, high: int) -> BitMap64: ...
    def row(self, shard: ShardId, seq: int) -> RowFacts: ...
    def stage(self, shard: ShardId, name: str, *, grouped: bool) -> StageFacts: ...
    def cells_from(
        self, shard: ShardId, kind: Kind, low: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]: ...
    def ended(self, shard: ShardId, low: int, high: int) -> BitMap64: ...
    def dead(self, shard: ShardId, low: int, high: int) -> BitMap64: ...
    def points(self, shard: ShardId, names: Sequence[tuple[Kind, bytes]]) -> list[bytes | None]: ...
    def seq_at(self, shard: ShardId, time_ms: int) -> int: ...
    def outlived(self, shard: ShardId, after: int, before_ms: int, limit: int) -> Outlived: ...
    def held(self, shard: ShardId, pin: int) -> list[Held]: ...
    def meta(self, shard: ShardId) -> ShardMeta | None: ...


def learn(draft: Draft, need: Need, source: Source) -> None:
    """Fetch what `decide` needs; what was folded since the view was told so must be told first."""
    facts = draft.view.facts
    if need.keys:
        facts.keys.update(zip(need.keys, source.find(need.shard, need.keys), strict=True))
    if need.hidden is not None:
        low, high = need.hidden
        lease.learn_hidden(draft, low, high, source.hidden(need.shard, low, high))
    for name in need.stages:
        facts.stages[name] = source.stage(need.shard, name, grouped=need.grouped)
    for seq in need.rows:
        facts.rows[seq] = source.row(need.shard, seq)
    if need.cells is not None:
        kind, key, limit = need.cells
        found = source.cells_from(need.shard, kind, key, limit)
        if kind is Kind.EXPIRY:
            expiry.learn(draft, found)
        elif kind in (Kind.RING, Kind.BUCKET) and not aside.is_old(draft.view, key):
            rotation.learn_cells(draft, kind, found, limit)
        else:
            aside.learn_cells(draft, kind, key, found, limit)
    for low, high in need.ended:
        facts.ended[low, high] = source.ended(need.shard, low, high)
    for low, high in need.dead:
        facts.dead[low, high] = source.dead(need.shard, low, high)
    if need.points:
        points.learn(draft.view, need.points, source.points(need.shard, need.points))
    if need.older_ms is not None:
        facts.older = source.seq_at(need.shard, need.older_ms)
    if need.outlived is not None:
        facts.outlived = source.outlived(need.shard, *need.outlived)
    for pin in need.held:
        facts.held[pin] = source.held(need.shard, pin)
    if need.live:
        meta = source.meta(need.shard)
        facts.live = meta.live if meta is not None else 0


def publish_plain(draft: Draft, commands: Sequence[Command]) -> list[Published]:
    """As `decide` for each of these, which are publishes without numbers, deletes and turns.

    The shard must not be keyed, nor delay what it takes: then nothing has to be checked, and all of
    them are one step.
    """
    answers: list[Published] = []
    messages: list[Message] = []
    seq = draft.view.last_seq + 1
    for command in commands:
        assert isinstance(command, Publish)
        assert isinstance(command.rows, tuple)
        messages.extend(command.rows)
        answers.append(Published(Seq(seq), len(command.rows)))
        seq += len(command.rows)
    draft.put_rows(messages)
    return answers


# --- Parts: what may stand alone or in a transaction ---------------------------------------------

Checked = PartAnswer | Refused | Retry | Need | None


def _check_part(desk: Desk, draft: Draft, part: Part) -> Checked:
    """None: it may be done. An answer: it was done before, or there is nothing to do."""
    match part:
        case Publish():
            return publish.check_publish(draft, part)
        case PublishStaged():
            return publish.check_publish_staged(draft, part)
        case CommitCursor():
            return follow.check_commit(draft, part)
        case OpenCursor():
            return follow.check_open_cursor(draft, part)
        case ResetCursor():
            return follow.check_reset(draft, part)
        case Locate():
            return follow.check_locate(draft, part)
        case Pin():
            return follow.check_plain_pin(draft)
        case Stage():
            return staged.check_stage(draft, part)
        case Rewind():
            return work.check_rewind(draft, part)
        case Configure():
            return catalog.check_configure(desk, draft, part)
        case Settle() | Release() | Extend() | Discard() | Unpin():
            return None
        case Purge() | DeleteCursor() | DropStage():
            return None
        case _:
            assert_never(part)


def _do_part(draft: Draft, part: Part) -> PartAnswer:
    match part:
        case Publish():
            return publish.do_publish(draft, part)
        case PublishStaged():
            return publish.do_publish_staged(draft, part)
        case Settle():
            return work.settle(draft, part)
        case Release():
            return failures.do_release(draft, part, work.judge(draft, part))
        case Discard():
            return failures.do_discard(draft, part, work.judge(draft, part))
        case Extend():
            return work.extend(draft, part)
        case Purge():
            return work.do_purge(draft, part)
        case Rewind():
            return work.do_rewind(draft, part)
        case Configure():
            return catalog.do_configure(draft, part)
        case CommitCursor():
            return follow.do_commit(draft, part)
        case OpenCursor():
            return follow.do_open_cursor(draft, part)
        case ResetCursor():
            return follow.do_reset(draft, part)
        case Locate():
            raise AssertionError("it is answered when it is checked")
        case DeleteCursor():
            return follow.do_delete_cursor(draft, part.name)
        case Pin():
            return follow.do_pin(draft, part)
        case Unpin():
            return follow.do_unpin(draft, part)
        case Stage():
            return staged.do_stage(draft, part)
        case DropStage():
            return staged.do_drop_stage(draft, part.stage)
        case _:
            assert_never(part)


def _part(desk: Desk, draft: Draft, part: Part) -> PartAnswer | Refused | Retry | Need:
    checked = _check_part(desk, draft, part)
    if checked is None and isinstance(part, Publish | PublishStaged):
        checked = publish.check_room(draft, part)
    return checked if checked is not None else _do_part(draft, part)


def _transaction(
    desk: Desk, command: Transaction
) -> tuple[PartAnswer, ...] | Refused | Retry | Need:
    """All parts or none: every part is judged before the first one is done."""
    refused = _check_once(command)
    if refused is not None:
        return refused
    checks: list[tuple[Draft, Part, PartAnswer | None]] = []
    looked_at = 0
    for shard, part in command.parts:
        draft = desk.draft(shard)
        if draft is None:
            return NotFound("a queue of the transaction was deleted", field="queue")
        if isinstance(part, PublishStaged):
            looked_at += staged.rows_looked_at(draft.view, part.stages)
            refused = staged.check_rows(looked_at)
            if refused is not None:
                return refused
        checked = _check_part(desk, draft, part)
        if isinstance(checked, Refused | Retry | Need):
            return checked
        if isinstance(part, Settle | Release | Extend | Discard):
            outcome = work.judge(draft, part)
            for seq in sorted(outcome.refused):
                return outcome.refused[seq]
        checks.append((draft, part, checked))
    refusal = _check_room(checks)
    if refusal is not None:
        return refusal
    # A message that the transaction settles and replaces under the same key is settled: what was
    # leased comes before what is published, in whichever order they were named.
    answers: dict[int, PartAnswer] = {}
    for at, (draft, part, checked) in sorted(enumerate(checks), key=_publishes):
        answers[at] = checked if checked is not None else _do_part(draft, part)
    return tuple(answers[at] for at in range(len(checks)))


def _check_room(
    checks: Sequence[tuple[Draft, Part, PartAnswer | None]],
) -> Refused | Retry | Need | None:
    """Whether all that is published finds room, after what is settled has made some."""
    asked: dict[ShardId, tuple[Draft, length.Asked]] = {}
    for draft, part, checked in checks:
        view = draft.view
        if not view.spec.is_bounded or checked is not None:
            continue
        if isinstance(part, Publish | PublishStaged):
            added = publish.asked_of(draft, part)
        elif isinstance(part, Settle) and not view.retaining:
            added = length.Asked(0, 0, part.seqs & BitMap64(view.holder))
        else:
            continue
        known = asked.get(view.shard)
        asked[view.shard] = (draft, known[1].plus(added) if known else added)
    for draft, wanted in asked.values():
        refusal = length.check(draft, wanted) if wanted.rows else None
        if refusal is not None:
            return refusal
    return None


def _publishes(item: tuple[int, tuple[Draft, Part, PartAnswer | None]]) -> bool:
    return isinstance(item[1][1], Publish | PublishStaged)


def _check_once(command: Transaction) -> Refused | None:
    """Parts are judged side by side, so that none may depend on what another one does."""
    if len(command.parts) > limits.TRANSACTION_PARTS_MAX:
        return TooLarge(
            f"a transaction holds up to {limits.TRANSACTION_PARTS_MAX} parts",
            field="parts",
            limit=limits.TRANSACTION_PARTS_MAX,
        )
    shards = [shard for shard, _ in command.parts]
    for shard, part in command.parts:
        if isinstance(part, Settle | Extend) and part.any_delivery:
            return Invalid("a transaction acts on the latest delivery alone", field="parts")
        if isinstance(part, Wide) and shards.count(shard) > 1:
            kind = type(part).__name__
            return Invalid(f"{kind} is all that may be asked of a queue at once", field="parts")
    seen: set[tuple[ShardId, str, str]] = set()
    leased: dict[tuple[ShardId, int], BitMap64] = {}
    for shard, part in command.parts:
        names: list[tuple[ShardId, str, str]] = []
        if isinstance(part, Publish | PublishStaged) and part.numbered is not None:
            names.append((shard, "producer", part.numbered.producer))
        if isinstance(part, PublishStaged):
            names.extend((shard, "stage", stage) for stage in part.stages)
        if isinstance(part, CommitCursor):
            names.append((shard, "cursor", part.name))
        for name in names:
            if name in seen:
                return Invalid(f"a transaction names {name[1]} {name[2]!r} twice", field="parts")
            seen.add(name)
        if isinstance(part, Settle | Release | Extend | Discard):
            known = leased.get((shard, part.lease), BitMap64())
            if known.intersect(part.seqs):
                return Invalid("a transaction names a leased message twice", field="parts")
            leased[shard, part.lease] = known | part.seqs
    return None
