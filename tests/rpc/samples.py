"""Sample values of every command and every answer that is sent between processes."""

from __future__ import annotations

from pyroaring import BitMap64

from millrace.core.answers import (
    Explanation,
    Holder,
    Holders,
    Leased,
    MultiShardSnapshot,
    Outcome,
    PublishResult,
    QueueRef,
    ShardLeases,
    SnapshotRef,
)
from millrace.core.cells import CursorCell, TopicCell
from millrace.core.commands import (
    ApplyTransaction,
    AwaitCursor,
    CommitCursor,
    Configure,
    CreateQueue,
    Delete,
    DeleteCursor,
    DeleteQueue,
    Discard,
    DropStage,
    Explain,
    Extend,
    LeaseFromShards,
    LeaseMessages,
    ListHolders,
    Locate,
    NextSnapshot,
    OpenCursor,
    Pin,
    ProducerNumber,
    Publish,
    PublishStaged,
    Purge,
    Release,
    Replace,
    ResetCursor,
    Rewind,
    RowSchedule,
    RowTtl,
    Settle,
    SnapshotShards,
    SpecPart,
    Stage,
    Unpin,
)
from millrace.core.format.block import Block
from millrace.core.format.receipt import Proved
from millrace.core.model import (
    CursorPosition,
    LeaseId,
    NewMessage,
    Seq,
    ShardId,
    StartPoint,
)
from millrace.core.notes import NotesLimit
from millrace.core.session_commands import (
    Claim,
    CloseSession,
    GrantCredit,
    Granted,
    OpenSession,
    Receive,
    ReceiveResult,
    ResumeSession,
    SessionDelivery,
    SessionRef,
    SuspectSession,
)
from millrace.core.spec import QueueSpec
from millrace.core.topic_commands import (
    ConfigureSubscription,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    Subscribe,
    SubscribeResult,
    TopicRef,
    Unsubscribe,
)
from millrace.errors import Gone, Late, Superseded

H = b"h" * 16
PROVED = LeaseId(Proved.of(7, b"", b"p" * 12))
GIVEN = LeaseId(Proved.of(7, H, b"p" * 12))
SHARD = ShardId(5)
ONE = BitMap64([9])
SOME = BitMap64([3, 9, 2**40])
CLAIM = Claim(PROVED, H, 2, 3)
NEXT = NextSnapshot("c", 1, 4, 1000, H)
REF = SnapshotRef(3, H, 4, False, 5, 6, 2)
LEASED = Leased(
    GIVEN, SOME, 123456, {9: (2, 1)}, (BitMap64([9]), BitMap64([3, 2**40])), firsts={9: 120000}
)
MESSAGE = NewMessage(b"body", b"key", (("a", b"1"), ("a", b"2")))

COMMANDS: list[object] = [
    Publish((NewMessage(b"x"),), by_body=True),
    Publish(
        (MESSAGE,),
        ProducerNumber("web", 7),
        (RowSchedule(0, 1, 9, 500),),
        ("id",),
        True,
        (RowTtl(0, 1, 9),),
    ),
    Publish((NewMessage(None, b"gone"),), ProducerNumber("web", 7, "range", 3)),
    Publish((NewMessage(b"y" * 100_000),)),
    Publish(Block.of_messages([MESSAGE, NewMessage(b""), NewMessage(None, b"k")])),
    Publish(Block.of_bodies([]), ProducerNumber("web", 7)),
    LeaseMessages(10, 30_000),
    LeaseMessages(1, 1, "attempt"),
    LeaseMessages(10, 1000, together=True),
    Settle(PROVED, ONE, H),
    Settle(PROVED, SOME, H),
    Settle(PROVED, ONE, H, True),
    Settle(PROVED, ONE, H, False, True),
    Release(PROVED, SOME, H, True, 1000, False),
    Release(PROVED, ONE, H, False, 0, False, True),
    Extend(PROVED, ONE, H, 5000),
    Extend(PROVED, ONE, H, 5000, True),
    Extend(PROVED, ONE, H, 5000, True, 43_200_000),
    Extend(PROVED, ONE, H, 5000, True, 43_200_000, True),
    Discard(PROVED, ONE, H),
    Replace(PROVED, ONE, H, MESSAGE, 1000),
    Replace(PROVED, ONE, H, NewMessage(b"z" * 50_000, b"k"), 1000),
    Delete(SOME),
    Explain(Seq(3)),
    Explain(Seq(3), b"group"),
    ListHolders(),
    Purge(),
    Purge(forgets_ids=True),
    Rewind(StartPoint.BEGINNING),
    Rewind(17),
    Configure(SpecPart(max_failures=3, dead_letter="default/dead")),
    Configure(SpecPart(notes=(("a", "b"), ("c", "")))),
    Configure(SpecPart(notes=(("a", "b"),)), NotesLimit("a", 50)),
    OpenCursor("c", StartPoint.END, True),
    NEXT,
    CommitCursor("c", 1, CursorPosition(H, 4, 2, 6)),
    ResetCursor("c", 12),
    ResetCursor("c", CursorPosition(H, 4, 2, 6), claims=True),
    Locate(CursorPosition(H, 4, 2, 6)),
    Locate(None),
    AwaitCursor("c", CursorPosition(H, 4, 2, 6)),
    DeleteCursor("c"),
    Pin(1000),
    Unpin(3, H, 5),
    Stage("s", Block.of_bodies([b"a", b"b"])),
    Stage("s", Block.of_bodies([b"a", b"b"]), (RowSchedule(0, 1, 9, 5),), (RowTtl(1, 1, 7),), 3),
    PublishStaged((), ProducerNumber("web", 9, "range", 4, ((1, 5), (3, 4)))),
    PublishStaged(("s", "t"), ProducerNumber("web", 7, "rising")),
    DropStage("s"),
    Subscribe("sub", "default", "orders", '{"kind":["a"]}'),
    Subscribe("sub", "default", "orders", "", (("a", "b"),)),
    Subscribe("sub", "default", "orders", "", (), True, "default/dead", (("c", "d"),)),
    ConfigureSubscription("sub", '{"kind":["a"]}', (("a", ""),)),
    ConfigureSubscription("sub"),
    Unsubscribe("sub"),
    OpenSession(10, True, 0, 1000, "name"),
    ResumeSession(PROVED, H),
    Receive(CLAIM, 4, 10),
    GrantCredit(CLAIM, 5, True),
    SuspectSession(CLAIM),
    CloseSession(CLAIM, 4, True),
    CreateQueue("default", "orders", SpecPart(keyed=True, order="fair"), 3, "group"),
    CreateQueue("default", "orders", SpecPart(), beside="default/others"),
    Configure(SpecPart(group_blocking="message")),
    Configure(SpecPart(message_bytes_max=1024)),
    DeleteQueue("default", "orders"),
    CreateTopic("default", "t", 10),
    ConfigureTopic("default", "t", 5, 10),
    ConfigureTopic("default", "t", 5, notes=(("a", "b"),)),
    ConfigureTopic("default", "t", 5, None, (("a", "b"),), NotesLimit("a", 50)),
    DeleteTopic("default", "t", 5),
    ApplyTransaction(((SHARD, Settle(PROVED, ONE, H)), (SHARD, Publish((NewMessage(b"x"),))))),
    LeaseFromShards((SHARD, ShardId(6)), 3, 1000),
    SnapshotShards(((SHARD, NEXT), (ShardId(6), NEXT))),
]

ANSWERS: list[object] = [
    PublishResult(Seq(4), 2),
    PublishResult(None, 2, True),
    PublishResult(Seq(4), 2, True, (4, 9)),
    LEASED,
    Leased(LeaseId(0), BitMap64(), 5, {}),
    Leased(LeaseId(0), BitMap64(), 5, {}, bounded=True),
    Outcome(
        SOME, {4: Superseded("newer", field="lease"), 5: Gone("gone", limit=3), 6: Late("late")}, 99
    ),
    CursorCell(1, True, CursorPosition(H, 1, 0, 2), 5, 3, False, 2, True, H + bytes(8)),
    CursorPosition(H, 1, 0, 2),
    REF,
    QueueSpec(keyed=True, dead_letter="default/dead"),
    4,
    -1,
    True,
    None,
    ShardLeases(((SHARD, LEASED),)),
    ShardLeases((), bounded=True),
    MultiShardSnapshot(4, (REF, REF)),
    QueueRef((SHARD, ShardId(6)), True, "spread", 2**63 + 5),
    QueueRef((SHARD,), False, placed_by="default/others"),
    Explanation(Seq(4), "leased", LeaseId(3), 99, 2, 1, Seq(9), 4, None, 77),
    SessionRef(CLAIM, 10, True, 0, 1000, 4, "name"),
    ReceiveResult((SessionDelivery(GIVEN, {9: 0, 3: 1}, 1 << 62, {9: (2, 1)}),), 2),
    Granted(4, 2),
    TopicRef(SHARD, True),
    TopicCell(5, 10, (("a", "b"),)),
    SubscribeResult(3, 4, True),
    Holders(1, 2, (Holder("cursor", "c", 3, 4, 5, 6, 7, True),), 9, 8, 7),
    (PublishResult(Seq(4), 2), Outcome(ONE, {}), 4, True, REF),
]
