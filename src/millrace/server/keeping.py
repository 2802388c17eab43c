"""What is written down of calls besides what they do: acts in the audit, and what was made.

The same as of requests (`rest/steward.py`), for clients that speak in calls: an act is noted before
it is done, and what is counted against a quota is counted before it is made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from millrace.client.engine import Engine
from millrace.core.commands import (
    Command,
    Configure,
    CreateQueue,
    DeleteCursor,
    DeleteQueue,
    OpenCursor,
    Purge,
    Rewind,
    Transaction,
)
from millrace.core.model import Kind as Cells
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
    Ask,
    BackUp,
    Call,
    Named,
    Repair,
    Unfollow,
)
from millrace.server.access import SYSTEM, Principal
from millrace.server.admission import NotKnown
from millrace.server.audit import AUDIT, Actor, Begun, outcome_of
from millrace.server.book import Book
from millrace.server.quota import Quotas
from millrace.server.record import Kind

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
"""What administrators do, as it is called in the audit."""

_CREATES = (CreateQueue, CreateTopic, OpenCursor, Subscribe)
_ENDS = (DeleteQueue, DeleteTopic, DeleteCursor, Unsubscribe)
_CHANGES = (Configure, ConfigureTopic)


_KEPT = frozenset((*ACTS, *_CREATES, *_ENDS))


class Subject(NamedTuple):
    """A command, and what it is about: space/queue, space/topic:name or space/queue/cursor."""

    command: object
    name: str
    target: str
    shard: ShardId = ShardId(0)

    @property
    def kind(self) -> Kind:
        """What it counts as."""
        if isinstance(self.command, Subscribe | Unsubscribe):
            return "subscriptions"
        return "cursors" if isinstance(self.command, OpenCursor | DeleteCursor) else "queues"


class Keeping:
    """Keeps the audit and the counts of what is called."""

    def __init__(
        self, book: Book, quotas: Quotas, changed: Callable[[str, str], None] | None = None
    ) -> None:
        """`changed` is called with space and name of what is configured."""
        self._book = book
        self._quotas = quotas
        self._changed = changed

    def wants(self, call: Call) -> bool:
        """Whether something is written of this call."""
        if isinstance(call, Ask):
            parts = _parts(call)
            return any(
                type(part) in ACTS or isinstance(part, _CREATES + _ENDS) for _, part in parts
            )
        return type(call) in ACTS

    async def answer(
        self,
        who: Principal,
        engine: Engine,
        named: Callable[[ShardId], Named],
        call: Call,
        do: Callable[[], Awaitable[object]],
    ) -> object:
        """Have a call answered, and write down what there is to write.

        Raises:
            Exhausted: whoever asks has made as many as they may; nothing was done.
            MillraceError: as `do`; or the act could not be noted, and nothing was done.
        """
        subjects = _subjects(call, named)
        made: list[Subject] = []
        begun: list[Begun] = []
        unnoted: list[Subject] = []
        try:
            for subject in subjects:
                if isinstance(subject.command, _CREATES):
                    if await _is_there(engine, subject):
                        # Nothing is made, and of a subscription perhaps nothing is changed.
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
                        # Nothing can be noted before it is repaired.
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

    def denied(self, who: Principal, call: Call, named: Callable[[ShardId], Named]) -> None:
        """Note a call that was denied, if it asks for an act.

        A shard that its caller sees nothing of is told as one that is not there; whose it is stands
        in the note.
        """
        if not self.wants(call):
            return
        try:
            subjects = _subjects(call, named)
        except NotKnown:
            # Nobody's shard is among them.
            return
        for subject in subjects:
            act = ACTS.get(type(subject.command))
            if act is not None:
                self._book.audit.denied(Actor(who.name, who.where), act, subject.target)

    def _tell(self, subjects: list[Subject]) -> None:
        for subject in subjects:
            if self._changed is not None and isinstance(subject.command, _CHANGES):
                space, _, name = subject.target.partition("/")
                self._changed(space, name)


def _repairs_audit(subject: Subject) -> bool:
    return isinstance(subject.command, Repair) and subject.target == f"{SYSTEM}/{AUDIT}"


def _parts(call: Ask) -> list[tuple[ShardId, Command]]:
    if isinstance(call.command, Transaction):
        return list(call.command.parts)
    return [(call.shard, call.command)]


def _subjects(call: Call, named: Callable[[ShardId], Named]) -> list[Subject]:
    """What a call is about; what is asked of all shards of a queue is one."""
    if isinstance(call, Repair):
        repaired = named(call.shards[0])
        return [Subject(call, "", f"{repaired.space}/{repaired.name}")]
    if not isinstance(call, Ask):
        return [Subject(call, "", getattr(call, "into", ""))]
    found: dict[tuple[type, str], Subject] = {}
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
        found.setdefault((type(part), name), Subject(part, name, target, shard))
    return list(found.values())


async def _is_there(engine: Engine, subject: Subject) -> bool:
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
