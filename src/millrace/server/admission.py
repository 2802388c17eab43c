"""Whether a call may be made: by whom, and of which shard.

Every call of another process passes here before an engine sees it, after its fields were checked
one by one (`millrace.rpc`).
"""

from __future__ import annotations

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.reserved import check_command
from millrace.core.across_commands import LeaseAcross, SnapshotAcross
from millrace.core.commands import (
    Command,
    Configure,
    CreateQueue,
    DeleteQueue,
    Publish,
    Release,
    SpecPart,
    Transaction,
)
from millrace.core.model import CATALOG, ShardId
from millrace.core.session_commands import SuspectSession
from millrace.core.topic_commands import ConfigureTopic, CreateTopic, DeleteTopic, Subscribe
from millrace.errors import Invalid, NotFound
from millrace.rpc.calls import (
    Ask,
    BackUp,
    Call,
    Cancel,
    FindQueue,
    FindTopic,
    ListQueues,
    ListSpaces,
    ListTopics,
    More,
    Named,
    ReadBackup,
    ReadGauges,
    ReadHealth,
    ReadLeased,
    Repair,
    Speak,
    Tell,
    Unfollow,
)
from millrace.server.access import VERBS
from millrace.server.verbs import (
    JUDGED_BY_NAME,
    OF_TOPICS,
    OF_TOPICS_ALONE,
    TOLD,
    VERB_OF,
    VERBS_OF,
    Caller,
)


class NotKnown(Exception):
    """The engine has to be asked first whose shard it is."""

    def __init__(self, shard: ShardId) -> None:
        super().__init__(shard)
        self.shard = shard


class Admission:
    """Judges calls by the names of their shards, which it remembers: a number is given once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._names: dict[ShardId, Named] = {}

    async def learn(self, caller: Caller, shard: ShardId) -> None:
        """Ask the engine whose shard it is.

        Raises:
            NotFound: nobody's, or that of a queue or topic with which the caller may do nothing.
                Both get the same answer after the same question to the engine: whoever tries one
                number after the other learns neither names nor which numbers are in use.
        """
        found = await self._engine.name_of(shard)
        if found is not None:
            if len(self._names) >= limits.SHARDS_KNOWN_MAX:
                self._names.clear()
            self._names[shard] = found
        if found is None or not caller.may(VERBS, found.space, found.name):
            raise NotFound("the queue was deleted, or never was", field="queue")

    def admit(self, caller: Caller, call: Call) -> Call:
        """The call, as the engine may be asked.

        Raises:
            NotKnown: `learn` first.
            Denied: the caller may not do this.
            Invalid, Forged: nobody may.
        """
        if isinstance(call, Ask | Tell):
            if isinstance(call, Tell) and type(call.command) not in TOLD:
                name = type(call.command).__name__
                raise Invalid(f"{name} is asked, not told: hear its answer", field="command")
            self._command(caller, call.shard, call.command)
            command = self._engine.judge(call.shard, call.command)
            if command is call.command:
                return call
            if isinstance(call, Tell):
                return Tell(call.shard, command)
            return Ask(call.shard, call.wait_ms, command)
        if isinstance(call, Speak):
            # Whoever may end a session may speak for it.
            told = self.admit(caller, Tell(call.shard, SuspectSession(call.claim)))
            assert isinstance(told, Tell)
            assert isinstance(told.command, SuspectSession)
            return Speak(call.shard, told.command.claim)
        verbs = VERBS_OF.get(type(call))
        if verbs is None or isinstance(call, Cancel | More):
            raise Invalid(f"{type(call).__name__} is no question", field="call")
        if isinstance(call, FindQueue | FindTopic):
            caller.check(verbs, call.space, call.name)
        elif isinstance(call, BackUp | ReadBackup | Unfollow | ReadHealth | Repair):
            caller.check_whole(verbs)
            if isinstance(call, Repair):
                # The audit names the queue.
                self.named(call.shards[0])
        elif isinstance(call, ReadGauges):
            # Names in it are left out that the caller may not watch (`questions`).
            caller.check(verbs, "*", "*")
        elif not isinstance(call, ListQueues | ListTopics | ListSpaces):
            named = self._seen(caller, call.shard)
            caller.check(verbs, named.space, named.name)
        if isinstance(call, ReadLeased):
            self._engine.judge(call.shard, Release(call.lease, call.seqs, call.history))
        return call

    def named(self, shard: ShardId) -> Named:
        """Whose shard it is.

        Raises:
            NotKnown: `learn` first.
        """
        found = self._names.get(shard)
        if found is None:
            raise NotKnown(shard)
        return found

    def _seen(self, caller: Caller, shard: ShardId) -> Named:
        """Whose shard it is, for a caller who may do anything with it.

        Raises:
            NotKnown: `learn` says what the caller is answered.
        """
        named = self.named(shard)
        if not caller.may(VERBS, named.space, named.name):
            raise NotKnown(shard)
        return named

    def _command(
        self, caller: Caller, shard: ShardId, command: Command, *, is_part: bool = False
    ) -> None:
        if isinstance(command, Transaction):
            if shard != command.parts[0][0]:
                raise Invalid("a transaction is asked of its first part's shard", field="shard")
            for at, part in command.parts:
                self._command(caller, at, part, is_part=True)
            return
        kind = type(command)
        if not caller.is_server and not (is_part and kind is Publish):
            # What a transaction publishes may be moved: `check_moved` looks at it.
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
        elif isinstance(command, LeaseAcross):
            _check_whole(named, shard, command.shards)
        elif isinstance(command, SnapshotAcross):
            _check_whole(named, shard, tuple(at for at, _ in command.parts))
        elif isinstance(command, Subscribe):
            caller.check(("publish",), command.space, command.queue)
        elif isinstance(command, Configure):
            _check_letters(caller, command.spec)


def _check_letters(caller: Caller, spec: object) -> None:
    """Dead letters go to another queue: whoever says so may publish there."""
    if isinstance(spec, SpecPart) and spec.dead_letter:
        space, _, name = spec.dead_letter.partition("/")
        caller.check(("publish",), space, name)


def _check_whole(named: Named, shard: ShardId, shards: tuple[ShardId, ...]) -> None:
    if shards != named.shards or shard != shards[0]:
        raise Invalid(
            "what is asked of several shards is asked of all shards of one queue", field="shards"
        )
