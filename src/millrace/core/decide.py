"""Turns commands into changes: the rules of the queue begin here.

Rule 1: decisions depend on the views, the command and the given time, on nothing else.
Rule 2: check first, change after. Once a change is emitted, nothing may raise.
Rule 3: this is the only file that switches on the type of a command.
Rule 4: an unknown command fails; it is never answered as if it had been done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, assert_never

from pyroaring import BitMap64

from millrace import limits
from millrace.core import catalog, multi_shard, ticks
from millrace.core.answers import (
    Explanation,
    Holders,
    Leased,
    MultiShardSnapshot,
    Outcome,
    PublishResult,
    QueueRef,
    ShardLeases,
    SnapshotRef,
)
from millrace.core.cells import CatalogCell, CursorCell, Kind, TopicCell
from millrace.core.commands import (
    ApplyTransaction,
    AwaitCursor,
    Command,
    CommitCursor,
    Configure,
    CreateQueue,
    Delete,
    DeleteCursor,
    DeleteQueue,
    Discard,
    DropStage,
    EndQuarantine,
    Explain,
    Extend,
    InitCatalog,
    LeaseFromShards,
    LeaseMessages,
    ListHolders,
    Locate,
    Mend,
    MoveDeadLetters,
    NextSnapshot,
    OpenCursor,
    Part,
    Pin,
    Publish,
    PublishStaged,
    Purge,
    Quarantine,
    Release,
    Replace,
    ResetCursor,
    Rewind,
    Settle,
    SnapshotShards,
    Stage,
    Tick,
    Unpin,
    Wide,
)
from millrace.core.delivery import (
    attempt_id,
    explain,
    group_lease,
    lease,
    quarantine,
    redelivery,
    sessions,
    settle,
)
from millrace.core.followers import cursors
from millrace.core.model import (
    CursorPosition,
    NewMessage,
    Seq,
    ShardId,
)
from millrace.core.needs import (
    ExpiredRows,
    Need,
    PinnedRows,
    RowFacts,
    StageFacts,
)
from millrace.core.ordering import deferred
from millrace.core.publishing import publish, stages
from millrace.core.retention import expiry, log_retention, max_length
from millrace.core.session_commands import (
    CloseSession,
    GrantCredit,
    Granted,
    OpenSession,
    Receive,
    ReceiveResult,
    ResumeSession,
    SessionRef,
    SuspectSession,
)
from millrace.core.spec import QueueSpec
from millrace.core.state import cell_lookup
from millrace.core.state.draft import BatchContext, Draft
from millrace.core.state.fold import ShardMeta
from millrace.core.topic_commands import (
    ConfigureSubscription,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    Forward,
    ForwardResult,
    Subscribe,
    SubscribeResult,
    TopicRef,
    Unsubscribe,
)
from millrace.core.topics import topic
from millrace.core.transfer import dead_letter, forward, replace
from millrace.errors import Invalid, NotFound, Refused, Retry, TooLarge

PartAnswer = (
    PublishResult | Outcome | CursorCell | SnapshotRef | CursorPosition | QueueSpec | int | bool
)
Answer = (
    PartAnswer
    | Leased
    | ShardLeases
    | MultiShardSnapshot
    | QueueRef
    | CatalogCell
    | Explanation
    | SessionRef
    | ReceiveResult
    | Granted
    | TopicRef
    | TopicCell
    | SubscribeResult
    | ForwardResult
    | Holders
    | tuple[PartAnswer, ...]
    | None
)


def decide(
    context: BatchContext, shard: ShardId, command: Command
) -> Answer | Refused | Retry | Need:
    """Validate a command and, if it is allowed, write its changes into the context's drafts.

    `Need`: nothing was decided; read what it names into the view's facts and call again.
    """
    if isinstance(command, _ACROSS):
        return _across(context, command)
    if isinstance(command, LeaseMessages):
        view = context.view(shard)
        if view is not None and view.quarantine:
            return quarantine.refusal(view)
        none = lease.find_empty(view, command, context.now)
        if none is not None:
            return none
    draft = context.draft(shard)
    if draft is None:
        return settle.queue_deleted()
    match command:
        # Commands with a single message are dispatched first.
        case LeaseMessages():
            return (
                lease.lease_next(draft, command)
                or attempt_id.again(draft, command)
                or _lease(draft, command)
            )
        case Settle():
            return settle.settle(draft, command)
        case Replace():
            return replace.replace(draft, command)
        case MoveDeadLetters():
            return dead_letter.move_dead_letters(context, draft, command)
        case Delete():
            return settle.delete_by_id(draft, command)
        case Quarantine():
            return quarantine.quarantine(context, draft, command)
        case Mend():
            return quarantine.mend(draft, command)
        case EndQuarantine():
            return quarantine.end_quarantine(context, draft, command)
        case Explain():
            return explain.explain(draft, command)
        case ListHolders():
            return log_retention.list_holders(draft)
        case NextSnapshot():
            return cursors.next_snapshot(draft, command)
        case AwaitCursor():
            return cursors.await_cursor(draft, command)
        case Tick():
            return ticks.do_tick(draft)
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
            return topic.subscribe(context, draft, command)
        case ConfigureSubscription():
            return topic.configure_subscription(draft, command)
        case Unsubscribe():
            return topic.unsubscribe(context, draft, command)
        case Forward():
            return forward.forward(context, draft, command)
        case CreateTopic():
            return topic.create(context, draft, _key(command), command)
        case ConfigureTopic():
            return topic.configure(context, draft, _key(command), command)
        case DeleteTopic():
            return topic.delete(context, draft, _key(command), command)
        case InitCatalog():
            return catalog.init_catalog(draft, command)
        case CreateQueue():
            return catalog.create(context, draft, command)
        case DeleteQueue():
            return catalog.delete(context, draft, command)
        case _:
            return _part(context, draft, command)


_ACROSS = (ApplyTransaction, LeaseFromShards, SnapshotShards)


def _across(
    context: BatchContext, command: ApplyTransaction | LeaseFromShards | SnapshotShards
) -> Answer | Refused | Retry | Need:
    match command:
        case ApplyTransaction():
            return _transaction(context, command)
        case LeaseFromShards():
            return multi_shard.lease_from_shards(context, command)
        case SnapshotShards():
            return multi_shard.snapshot_shards(context, command)


def _key(command: CreateTopic | ConfigureTopic | DeleteTopic) -> bytes:
    return catalog.queue_key(command.space, command.name)


def _lease(draft: Draft, command: LeaseMessages) -> Leased | Retry | Need:
    checked = lease.check_lease(draft, command)
    if checked is not None:
        return checked
    return attempt_id.remember(draft, command, lease.do_lease(draft, command))


class NeedResolver(Protocol):
    """Resolves a `Need`: the store, as of its last folded batch."""

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
    def outlived(self, shard: ShardId, after: int, before_ms: int, limit: int) -> ExpiredRows: ...
    def held(self, shard: ShardId, pin: int) -> list[PinnedRows]: ...
    def meta(self, shard: ShardId) -> ShardMeta | None: ...


def learn(draft: Draft, need: Need, source: NeedResolver) -> None:
    """Read from the store what `decide` needs; the view must know of all batches folded since
    its last read."""
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
        cells = source.cells_from(need.shard, kind, key, limit)
        if kind is Kind.EXPIRY:
            expiry.learn(draft, cells)
        elif kind in (Kind.RING, Kind.BUCKET) and not deferred.is_old(draft.view, key):
            group_lease.learn_cells(draft, kind, cells, limit)
        else:
            deferred.learn_cells(draft, kind, key, cells, limit)
    for low, high in need.ended:
        facts.ended[low, high] = source.ended(need.shard, low, high)
    for low, high in need.dead:
        facts.dead[low, high] = source.dead(need.shard, low, high)
    if need.points:
        cell_lookup.learn(draft.view, need.points, source.points(need.shard, need.points))
    if need.older_ms is not None:
        facts.older = source.seq_at(need.shard, need.older_ms)
    if need.outlived is not None:
        facts.outlived = source.outlived(need.shard, *need.outlived)
    for pin in need.held:
        facts.held[pin] = source.held(need.shard, pin)
    if need.live:
        meta = source.meta(need.shard)
        facts.live = meta.live if meta is not None else 0


def publish_plain(draft: Draft, commands: Sequence[Command]) -> list[PublishResult]:
    """Decide publishes without numbers, deletes and schedules, as `decide` would each.

    The shard must be neither keyed nor delaying: then nothing has to be checked, and all of them
    are one step.
    """
    answers: list[PublishResult] = []
    messages: list[NewMessage] = []
    seq = draft.view.last_seq + 1
    for command in commands:
        assert isinstance(command, Publish)
        assert isinstance(command.rows, tuple)
        messages.extend(command.rows)
        answers.append(PublishResult(Seq(seq), len(command.rows)))
        seq += len(command.rows)
    draft.put_rows(messages)
    return answers


# --- Parts: commands that stand alone or in a transaction ----------------------------------------

Checked = PartAnswer | Refused | Retry | Need | None


def _check_part(context: BatchContext, draft: Draft, part: Part) -> Checked:
    """Check a part: None if it may be done; an answer if it was done before, or has nothing to
    do."""
    match part:
        case Publish():
            return publish.check_publish(draft, part)
        case PublishStaged():
            return publish.check_publish_staged(draft, part)
        case CommitCursor():
            return cursors.check_commit(draft, part)
        case OpenCursor():
            return cursors.check_open_cursor(draft, part)
        case ResetCursor():
            return cursors.check_reset(draft, part)
        case Locate():
            return cursors.check_locate(draft, part)
        case Pin():
            return cursors.check_plain_pin(draft)
        case Stage():
            return stages.check_stage(draft, part)
        case Rewind():
            return settle.check_rewind(draft, part)
        case Configure():
            return catalog.check_configure(context, draft, part)
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
            return settle.settle(draft, part)
        case Release():
            return redelivery.do_release(draft, part, settle.judge(draft, part))
        case Discard():
            return redelivery.do_discard(draft, part, settle.judge(draft, part))
        case Extend():
            return settle.extend(draft, part)
        case Purge():
            return settle.do_purge(draft, part)
        case Rewind():
            return settle.do_rewind(draft, part)
        case Configure():
            return catalog.do_configure(draft, part)
        case CommitCursor():
            return cursors.do_commit(draft, part)
        case OpenCursor():
            return cursors.do_open_cursor(draft, part)
        case ResetCursor():
            return cursors.do_reset(draft, part)
        case Locate():
            raise AssertionError("it is answered when it is checked")
        case DeleteCursor():
            return cursors.do_delete_cursor(draft, part.name)
        case Pin():
            return cursors.do_pin(draft, part)
        case Unpin():
            return cursors.do_unpin(draft, part)
        case Stage():
            return stages.do_stage(draft, part)
        case DropStage():
            return stages.do_drop_stage(draft, part.stage)
        case _:
            assert_never(part)


def _part(context: BatchContext, draft: Draft, part: Part) -> PartAnswer | Refused | Retry | Need:
    checked = _check_part(context, draft, part)
    if checked is None and isinstance(part, Publish | PublishStaged):
        checked = publish.check_room(draft, part)
    return checked if checked is not None else _do_part(draft, part)


def _transaction(
    context: BatchContext, command: ApplyTransaction
) -> tuple[PartAnswer, ...] | Refused | Retry | Need:
    """Do all parts or none: every part is checked before the first one is done."""
    refused = _check_once(command)
    if refused is not None:
        return refused
    checks: list[tuple[Draft, Part, PartAnswer | None]] = []
    looked_at = 0
    for shard, part in command.parts:
        draft = context.draft(shard)
        if draft is None:
            return NotFound("a queue of the transaction was deleted", field="queue")
        if isinstance(part, PublishStaged):
            looked_at += stages.rows_looked_at(draft.view, part.stages)
            refused = stages.check_rows(looked_at)
            if refused is not None:
                return refused
        checked = _check_part(context, draft, part)
        if isinstance(checked, Refused | Retry | Need):
            return checked
        if isinstance(part, Settle | Release | Extend | Discard):
            outcome = settle.judge(draft, part)
            for seq in sorted(outcome.refused):
                return outcome.refused[seq]
        checks.append((draft, part, checked))
    refusal = _check_room(checks)
    if refusal is not None:
        return refusal
    # A message that the transaction both settles and replaces under the same key counts as settled:
    # leases come before publishes, in whichever order the parts are.
    answers: dict[int, PartAnswer] = {}
    for at, (draft, part, checked) in sorted(enumerate(checks), key=_publishes):
        answers[at] = checked if checked is not None else _do_part(draft, part)
    return tuple(answers[at] for at in range(len(checks)))


def _check_room(
    checks: Sequence[tuple[Draft, Part, PartAnswer | None]],
) -> Refused | Retry | Need | None:
    """Check that all published rows fit into their queues, after the settled ones have made
    room."""
    asked: dict[ShardId, tuple[Draft, max_length.AddedRows]] = {}
    for draft, part, checked in checks:
        view = draft.view
        if not view.spec.is_bounded or checked is not None:
            continue
        if isinstance(part, Publish | PublishStaged):
            added = publish.rows_added_by(draft, part)
        elif isinstance(part, Settle) and not view.retaining:
            added = max_length.AddedRows(0, 0, part.seqs & BitMap64(view.holder))
        else:
            continue
        earlier = asked.get(view.shard)
        asked[view.shard] = (draft, earlier[1].plus(added) if earlier else added)
    for draft, wanted in asked.values():
        refusal = max_length.check(draft, wanted) if wanted.rows else None
        if refusal is not None:
            return refusal
    return None


def _publishes(item: tuple[int, tuple[Draft, Part, PartAnswer | None]]) -> bool:
    return isinstance(item[1][1], Publish | PublishStaged)


def _check_once(command: ApplyTransaction) -> Refused | None:
    """Refuse parts that depend on each other: they are checked independently."""
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
