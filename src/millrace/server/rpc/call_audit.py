"""Audit of calls, and quotas on the objects that they create.

The counterpart of `web/request_audit.py` for calls: an operation is recorded before it runs, and an
object is counted against a quota before it is created.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from millrace.client.engine import Engine
from millrace.core.cells import Kind as Cells
from millrace.core.commands import (
    ApplyTransaction,
    Command,
    Configure,
    CreateQueue,
    DeleteCursor,
    DeleteQueue,
    OpenCursor,
    Purge,
    Rewind,
)
from millrace.core.model import ShardId
from millrace.core.topic_commands import (
    ConfigureSubscription,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    Subscribe,
    Unsubscribe,
)
from millrace.errors import MillraceError, Quarantined
from millrace.rpc.calls import (
    BackUp,
    Call,
    Repair,
    ShardName,
    Submit,
    Unfollow,
)
from millrace.server.auth.access import SYSTEM, Principal
from millrace.server.auth.audit import (
    AUDIT,
    Actor,
    RunningOperation,
    outcome_of,
)
from millrace.server.auth.records import Kind
from millrace.server.auth.store import UserStore
from millrace.server.quota.quotas import Quotas
from millrace.server.rpc.call_authorizer import UnknownShard

ACTS: dict[type, str] = {
    CreateQueue: "make_queue",
    DeleteQueue: "delete_queue",
    Configure: "configure_queue",
    Purge: "purge",
    Rewind: "rewind",
    CreateTopic: "make_topic",
    DeleteTopic: "delete_topic",
    ConfigureTopic: "configure_topic",
    Subscribe: "subscribe",
    ConfigureSubscription: "configure_subscription",
    Unsubscribe: "unsubscribe",
    BackUp: "backup",
    Unfollow: "unfollow",
    Repair: "repair",
}
"""Administrative operations, by their names in the audit."""

_CREATES = (CreateQueue, CreateTopic, OpenCursor, Subscribe)
_ENDS = (DeleteQueue, DeleteTopic, DeleteCursor, Unsubscribe)
_CHANGES = (Configure, ConfigureTopic)


_KEPT = frozenset((*ACTS, *_CREATES, *_ENDS))


class CallTarget(NamedTuple):
    """A command and its target: space/queue, space/topic:name or space/queue/cursor."""

    command: object
    name: str
    target: str
    shard: ShardId = ShardId(0)

    @property
    def kind(self) -> Kind:
        """Kind under which the object is counted."""
        if isinstance(self.command, Subscribe | Unsubscribe):
            return "subscriptions"
        return "cursors" if isinstance(self.command, OpenCursor | DeleteCursor) else "queues"


class CallAudit:
    """Records the administrative operations of calls, and counts the objects that they create."""

    def __init__(
        self, book: UserStore, quotas: Quotas, changed: Callable[[str, str], None] | None = None
    ) -> None:
        """`changed` is called with space and name of each configured queue or topic."""
        self._book = book
        self._quotas = quotas
        self._changed = changed

    def wants(self, call: Call) -> bool:
        """Return whether a call is audited or counted."""
        if isinstance(call, Submit):
            parts = _parts(call)
            return any(
                type(part) in ACTS or isinstance(part, _CREATES + _ENDS) for _, part in parts
            )
        return type(call) in ACTS

    async def answer(
        self,
        who: Principal,
        engine: Engine,
        named: Callable[[ShardId], ShardName],
        call: Call,
        do: Callable[[], Awaitable[object]],
    ) -> object:
        """Run a call by `do`, with its audit records and counts.

        Raises:
            Exhausted: the user's quota of created objects is used up; the call was not run.
            MillraceError: as `do`, or the operation could not be recorded, and was not run.
        """
        subjects = _subjects(call, named)
        made: list[CallTarget] = []
        begun: list[RunningOperation] = []
        unnoted: list[CallTarget] = []
        try:
            for subject in subjects:
                if isinstance(subject.command, _CREATES):
                    if await _is_there(engine, subject):
                        # Nothing is created, and a subscription is perhaps not even changed.
                        continue
                    quota = self._quotas.of(who)
                    if await self._book.claim(who, quota, subject.kind, subject.name):
                        made.append(subject)
                act = ACTS.get(type(subject.command))
                if act is not None:
                    actor = Actor(who.name, who.where)
                    try:
                        begun.append(await self._book.audit.begin(actor, act, subject.target))
                    except Quarantined:
                        if not _repairs_audit(subject):
                            raise
                        # Nothing can be recorded until the audit queue is repaired.
                        unnoted.append(subject)
            answer = await do()
        except MillraceError as error:
            for subject in made:
                await self._book.unclaim(who, subject.kind, subject.name)
            for one in begun:
                await one.end(outcome_of(error), error.code)
            raise
        except BaseException:
            for one in begun:
                one.end_soon("unknown")
            raise
        finally:
            self._tell(subjects)
        for subject in subjects:
            if isinstance(subject.command, _ENDS):
                await self._book.unclaim(who, subject.kind, subject.name)
        for one in begun:
            await one.end("done")
        for subject in unnoted:
            actor = Actor(who.name, who.where)
            note = self._book.audit.note(actor, ACTS[Repair], subject.target)
            await self._book.audit.write(note)
        return answer

    def denied(self, who: Principal, call: Call, named: Callable[[ShardId], ShardName]) -> None:
        """Record a denied call if it is an administrative operation.

        A caller without any right on a shard gets the answer for a missing one; the record has its
        name.
        """
        if not self.wants(call):
            return
        try:
            subjects = _subjects(call, named)
        except UnknownShard:
            # A shard among them does not exist.
            return
        for subject in subjects:
            act = ACTS.get(type(subject.command))
            if act is not None:
                self._book.audit.denied(Actor(who.name, who.where), act, subject.target)

    def _tell(self, subjects: list[CallTarget]) -> None:
        for subject in subjects:
            if self._changed is not None and isinstance(subject.command, _CHANGES):
                space, _, name = subject.target.partition("/")
                self._changed(space, name)


def _repairs_audit(subject: CallTarget) -> bool:
    return isinstance(subject.command, Repair) and subject.target == f"{SYSTEM}/{AUDIT}"


def _parts(call: Submit) -> list[tuple[ShardId, Command]]:
    if isinstance(call.command, ApplyTransaction):
        return list(call.command.parts)
    return [(call.shard, call.command)]


def _subjects(call: Call, named: Callable[[ShardId], ShardName]) -> list[CallTarget]:
    """Return the targets of a call; the parts for all shards of a queue are one target."""
    if isinstance(call, Repair):
        repaired = named(call.shards[0])
        return [CallTarget(call, "", f"{repaired.space}/{repaired.name}")]
    if not isinstance(call, Submit):
        return [CallTarget(call, "", getattr(call, "into", ""))]
    found: dict[tuple[type, str], CallTarget] = {}
    for shard, part in _parts(call):
        if isinstance(part, CreateQueue | DeleteQueue):
            name = target = f"{part.space}/{part.name}"
        elif isinstance(part, CreateTopic | DeleteTopic | ConfigureTopic):
            name, target = f"{part.space}/topic:{part.name}", f"{part.space}/{part.name}"
        elif type(part) in ACTS or isinstance(part, OpenCursor | DeleteCursor):
            queue = named(shard)
            name = target = f"{queue.space}/{queue.name}"
            if isinstance(part, OpenCursor | DeleteCursor):
                name = target = f"{name}/{part.name}"
            elif isinstance(part, Subscribe | Unsubscribe):
                name = f"{name}/{part.name}"
        else:
            continue
        found.setdefault((type(part), name), CallTarget(part, name, target, shard))
    return list(found.values())


async def _is_there(engine: Engine, subject: CallTarget) -> bool:
    command = subject.command
    if isinstance(command, CreateQueue):
        return await engine.find_queue(command.space, command.name) is not None
    if isinstance(command, CreateTopic):
        return await engine.find_topic(command.space, command.name) is not None
    if isinstance(command, Subscribe):
        cells = await engine.subscriptions(subject.shard)
        return any(cell.name == command.name for cell in cells.values())
    assert isinstance(command, OpenCursor)
    return command.name in await engine.cells(subject.shard, Cells.CURSOR)
