"""Authorization of calls by the caller and the shard.

Every call of another process passes through it before it reaches an engine, after its fields were
validated one by one (`millrace.rpc`).
"""

from __future__ import annotations

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.reserved import check_command
from millrace.core.commands import (
    ApplyTransaction,
    Command,
    Configure,
    CreateQueue,
    DeleteQueue,
    LeaseFromShards,
    Publish,
    Release,
    SnapshotShards,
    SpecPart,
)
from millrace.core.model import CATALOG, ShardId
from millrace.core.session_commands import SuspectSession
from millrace.core.topic_commands import ConfigureTopic, CreateTopic, DeleteTopic, Subscribe
from millrace.errors import Invalid, NotFound
from millrace.rpc.calls import (
    BackUp,
    BatchTaken,
    Call,
    Cancel,
    FindQueue,
    FindTopic,
    Heartbeat,
    ListQueues,
    ListSpaces,
    ListTopics,
    Notify,
    ReadBackup,
    ReadGauges,
    ReadHealth,
    ReadLeased,
    Repair,
    ShardName,
    Submit,
    Unfollow,
)
from millrace.server.auth.access import VERBS
from millrace.server.rpc.call_permissions import (
    JUDGED_BY_NAME,
    OF_TOPICS,
    OF_TOPICS_ALONE,
    TOLD,
    VERB_OF,
    VERBS_OF,
    Caller,
)


class UnknownShard(Exception):
    """The name of the shard is not cached yet: `learn` reads it."""

    def __init__(self, shard: ShardId) -> None:
        super().__init__(shard)
        self.shard = shard


class CallAuthorizer:
    """Authorizes calls by the names of their shards. Names are cached: a shard id is never
    reused."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._names: dict[ShardId, ShardName] = {}

    async def learn(self, caller: Caller, shard: ShardId) -> None:
        """Read the name of a shard from the engine and cache it.

        Raises:
            NotFound: the shard does not exist, or the caller has no right on its queue or topic.
                Both get the same answer after the same query to the engine: a caller that tries all
                ids learns neither names nor used ids.
        """
        found = await self._engine.name_of(shard)
        if found is not None:
            if len(self._names) >= limits.SHARDS_KNOWN_MAX:
                self._names.clear()
            self._names[shard] = found
        if found is None or not caller.may(VERBS, found.space, found.name):
            raise NotFound("the queue was deleted, or never was", field="queue")

    def admit(self, caller: Caller, call: Call) -> Call:
        """Authorize a call, and return it with its receipts verified by the engine.

        Raises:
            NotKnown: call `learn` first.
            Denied: the caller lacks the right.
            Invalid, Forged: the call is not allowed for any caller.
        """
        if isinstance(call, Submit | Notify):
            if isinstance(call, Notify) and type(call.command) not in TOLD:
                name = type(call.command).__name__
                raise Invalid(f"{name} is asked, not told: hear its answer", field="command")
            self._command(caller, call.shard, call.command)
            command = self._engine.judge(call.shard, call.command)
            if command is call.command:
                return call
            if isinstance(call, Notify):
                return Notify(call.shard, command)
            return Submit(call.shard, call.wait_ms, command)
        if isinstance(call, Heartbeat):
            # The right to end a session includes that to keep it alive.
            told = self.admit(caller, Notify(call.shard, SuspectSession(call.claim)))
            assert isinstance(told, Notify)
            assert isinstance(told.command, SuspectSession)
            return Heartbeat(call.shard, told.command.claim)
        verbs = VERBS_OF.get(type(call))
        if verbs is None or isinstance(call, Cancel | BatchTaken):
            raise Invalid(f"{type(call).__name__} is no question", field="call")
        if isinstance(call, FindQueue | FindTopic):
            caller.check(verbs, call.space, call.name)
        elif isinstance(call, BackUp | ReadBackup | Unfollow | ReadHealth | Repair):
            caller.check_whole(verbs)
            if isinstance(call, Repair):
                # The audit record names the queue.
                self.named(call.shards[0])
        elif isinstance(call, ReadGauges):
            # The answer omits names that the caller may not watch (`queries`).
            caller.check(verbs, "*", "*")
        elif not isinstance(call, ListQueues | ListTopics | ListSpaces):
            named = self._seen(caller, call.shard)
            caller.check(verbs, named.space, named.name)
        if isinstance(call, ReadLeased):
            self._engine.judge(call.shard, Release(call.lease, call.seqs, call.history))
        return call

    def named(self, shard: ShardId) -> ShardName:
        """Return the name of a shard.

        Raises:
            NotKnown: call `learn` first.
        """
        found = self._names.get(shard)
        if found is None:
            raise UnknownShard(shard)
        return found

    def _seen(self, caller: Caller, shard: ShardId) -> ShardName:
        """Return the name of a shard on which the caller has any right.

        Raises:
            NotKnown: `learn` raises the error for the caller.
        """
        named = self.named(shard)
        if not caller.may(VERBS, named.space, named.name):
            raise UnknownShard(shard)
        return named

    def _command(
        self, caller: Caller, shard: ShardId, command: Command, *, is_part: bool = False
    ) -> None:
        if isinstance(command, ApplyTransaction):
            if shard != command.parts[0][0]:
                raise Invalid("a transaction is asked of its first part's shard", field="shard")
            for at, part in command.parts:
                self._command(caller, at, part, is_part=True)
            return
        kind = type(command)
        if not caller.is_server and not (is_part and kind is Publish):
            # Messages of a transaction may be moved ones with reserved headers: `check_moved`
            # checks them.
            check_command(command)
        if (shard, kind) in caller.passed:
            return
        verb = VERB_OF.get(kind)
        if verb is None:
            raise Invalid(f"{kind.__name__} is asked by nobody but the engine", field="command")
        if isinstance(
            command, CreateQueue | DeleteQueue | CreateTopic | ConfigureTopic | DeleteTopic
        ):
            if shard != CATALOG:
                raise Invalid(f"{kind.__name__} is asked of the catalog", field="shard")
            caller.check((verb,), command.space, command.name)
            if isinstance(command, CreateQueue):
                _check_letters(caller, command.spec)
                _check_place(caller, command)
            return
        named = self._seen(caller, shard)
        caller.check((verb,), named.space, named.name)
        wants_topic = kind in OF_TOPICS_ALONE
        if not (
            (named.kind == "queue" and not wants_topic)
            or (named.kind == "topic" and kind in OF_TOPICS)
        ):
            raise Invalid(f"{kind.__name__} cannot be asked of a {named.kind}", field="shard")
        if kind in JUDGED_BY_NAME:
            if len(caller.passed) >= limits.SHARDS_KNOWN_MAX:
                caller.passed.clear()
            caller.passed.add((shard, kind))
        elif isinstance(command, LeaseFromShards):
            _check_whole(named, shard, command.shards)
        elif isinstance(command, SnapshotShards):
            _check_whole(named, shard, tuple(at for at, _ in command.parts))
        elif isinstance(command, Subscribe):
            caller.check(("publish",), command.space, command.queue)
        elif isinstance(command, Configure):
            _check_letters(caller, command.spec)


def _check_place(caller: Caller, command: CreateQueue) -> None:
    """Check the right to publish to the queue beside which the new one is placed; a queue of
    another space is refused, since the answer would tell whether it exists."""
    if command.beside:
        space, _, name = command.beside.partition("/")
        if space != command.space:
            raise Invalid("a queue is placed beside one of its own space", field="beside")
        caller.check(("publish",), space, name)


def _check_letters(caller: Caller, spec: object) -> None:
    """Check the right to publish to the dead-letter queue, which receives messages of this one."""
    if isinstance(spec, SpecPart) and spec.dead_letter:
        space, _, name = spec.dead_letter.partition("/")
        caller.check(("publish",), space, name)


def _check_whole(named: ShardName, shard: ShardId, shards: tuple[ShardId, ...]) -> None:
    if shards != named.shards or shard != shards[0]:
        raise Invalid(
            "what is asked of several shards is asked of all shards of one queue", field="shards"
        )
