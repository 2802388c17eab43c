"""Who may make which call: every kind of call and command, by every role."""

from __future__ import annotations

from pathlib import Path
from typing import cast, get_args

import pytest
from pyroaring import BitMap64

from millrace.client.millrace import Millrace, engine_of
from millrace.core.commands import (
    ApplyTransaction,
    Command,
    Configure,
    CreateQueue,
    DeleteQueue,
    LeaseFromShards,
    LeaseMessages,
    Pin,
    Publish,
    Purge,
    SnapshotShards,
    SpecPart,
)
from millrace.core.format.receipt import Proved
from millrace.core.model import (
    CATALOG,
    LeaseId,
    NewMessage,
    ShardId,
)
from millrace.core.topic_commands import ConfigureTopic, CreateTopic, DeleteTopic, Subscribe
from millrace.errors import Denied, Forged, Invalid, MillraceError, NotFound
from millrace.rpc import calls
from millrace.rpc.calls import Call, Submit
from millrace.rpc.commands import COMMANDS as KNOWN
from millrace.server.auth.access import (
    VERBS,
    Principal,
    Rule,
    Verb,
    parse_rule,
)
from millrace.server.rpc.call_authorizer import CallAuthorizer, UnknownShard
from millrace.server.rpc.call_permissions import (
    OF_TOPICS_ALONE,
    VERB_OF,
    VERBS_OF,
    Caller,
)
from tests.client.harness import embedded, opened, run
from tests.rpc.samples import COMMANDS, NEXT

ROLES: dict[str, tuple[Verb, ...]] = {
    "nobody": (),
    **{verb: (verb,) for verb in VERBS},
    "all": VERBS,
}
GUESSED = cast("LeaseId", Proved.of(1, b"h" * 16, b"p" * 12))
_BY_NAME = (CreateQueue, DeleteQueue, CreateTopic, ConfigureTopic, DeleteTopic)
OF_CATALOG = ("CreateQueue", "DeleteQueue", "CreateTopic", "ConfigureTopic", "DeleteTopic")


def caller(verbs: tuple[Verb, ...], pattern: str = "default/orders") -> Caller:
    space, name = pattern.split("/")
    rules = (Rule(True, verbs, space, name),) if verbs else ()
    return Caller(Principal("me", rules))


async def tried(admission: CallAuthorizer, who: Caller, call: Call) -> MillraceError | None:
    while True:
        try:
            admission.admit(who, call)
        except UnknownShard as unknown:
            try:
                await admission.learn(who, unknown.shard)
            except NotFound as error:
                return error
        except MillraceError as error:
            return error
        else:
            return None


async def scene(m: Millrace) -> tuple[CallAuthorizer, ShardId, ShardId]:
    queue = await m.queue("orders", shards=2)
    await m.topic("news")
    topic = await engine_of(m).find_topic("default", "news")
    assert topic is not None
    return CallAuthorizer(engine_of(m)), queue.shards.first, topic


def aimed(command: Command, shard: ShardId, topic: ShardId) -> Submit:
    """The sample command, asked of a shard that takes it."""
    name = type(command).__name__
    if name in OF_CATALOG:
        return Submit(CATALOG, 0, command)
    if type(command) in OF_TOPICS_ALONE:
        return Submit(topic, 0, command)
    second = ShardId(shard + 1)
    if isinstance(command, LeaseFromShards):
        command = LeaseFromShards((shard, second), 1, 1)
    elif isinstance(command, SnapshotShards):
        command = SnapshotShards(((shard, NEXT), (second, NEXT)))
    elif isinstance(command, ApplyTransaction):
        command = ApplyTransaction(tuple((shard, part) for _, part in command.parts))
    return Submit(shard, 0, command)


def test_every_command_and_call_has_its_verb() -> None:
    assert set(VERB_OF) | {ApplyTransaction} == KNOWN.kinds()
    # Those by which commands, or sessions, are judged by themselves.
    judged = {calls.Submit, calls.Notify, calls.Heartbeat, calls.Cancel, calls.BatchTaken}
    assert set(VERBS_OF) | judged == set(get_args(Call))


@pytest.mark.parametrize("role", ROLES)
def test_every_command_by_every_role(tmp_path: Path, role: str) -> None:
    async def main() -> None:
        async with opened(tmp_path) as m:
            admission, shard, topic = await scene(m)
            for command in COMMANDS:
                assert isinstance(command, get_args(Command))
                call = aimed(command, shard, topic)
                # Rules for everything that the samples name, but for one verb.
                names = ("orders", "news", "t", "dead", "others")
                rules = tuple(Rule(True, ROLES[role], "default", name) for name in names)
                who = Caller(Principal("me", rules))
                error = await tried(admission, who, call)
                wanted = (
                    {VERB_OF[type(part)] for _, part in command.parts}
                    if isinstance(command, ApplyTransaction)
                    else {VERB_OF[type(command)]}
                )
                if isinstance(command, Subscribe) or (
                    isinstance(command, Configure | CreateQueue)
                    and isinstance(command.spec, SpecPart)
                    and (
                        command.spec.dead_letter
                        or (isinstance(command, CreateQueue) and command.beside)
                    )
                ):
                    wanted.add("publish")
                if isinstance(command, Subscribe) and command.durable:
                    # Only the server asks for it, whatever the rules say.
                    assert isinstance(error, Invalid), (command, error)
                elif wanted <= set(ROLES[role]):
                    # The proofs of the samples were made up.
                    assert error is None or isinstance(error, Forged), (command, error)
                elif role == "nobody" and not isinstance(call.command, _BY_NAME):
                    assert isinstance(error, NotFound), (command, error)
                else:
                    assert isinstance(error, Denied), (command, error)

    run(main())


def every_call(shard: ShardId, topic: ShardId) -> list[Call]:
    return [
        calls.ReadRows(shard, BitMap64([1]), 10),
        calls.ReadLeased(shard, BitMap64([1]), 10, GUESSED, b"h" * 16),
        calls.ReadBatches(shard, 0, 1, None, False),
        calls.Peek(shard, 0, None, 1),
        calls.ReadCells(shard, "cursor"),
        calls.FindNumber(shard, "p"),
        calls.FindQueue("default", "orders"),
        calls.FindTopic("default", "news"),
        calls.ListSubscriptions(topic),
        calls.ReadTopic(topic),
        calls.AwaitForwarding(topic, 1, 1),
        calls.ListForwardErrors(topic),
        calls.ReadSpec(shard),
        calls.ReadMeta(shard),
        calls.FindSeq(shard, 1),
        calls.FindName(shard),
        calls.BackUp("/x", False),
        calls.ReadBackup(),
        calls.Unfollow(),
        calls.ReadHealth(),
        calls.Repair((shard,), "", drop=False),
        calls.ReadGauges(),
    ]


@pytest.mark.parametrize("role", ROLES)
def test_every_call_by_every_role(tmp_path: Path, role: str) -> None:
    async def main() -> None:
        async with opened(tmp_path) as m:
            admission, shard, topic = await scene(m)
            for call in every_call(shard, topic):
                who = caller(ROLES[role], "*/*")
                error = await tried(admission, who, call)
                if set(VERBS_OF[type(call)]) & set(ROLES[role]):
                    # The proof of a lease was made up.
                    forged = isinstance(call, calls.ReadLeased) and isinstance(error, Forged)
                    assert error is None or forged, (call, error)
                else:
                    kind = NotFound if role == "nobody" and hasattr(call, "shard") else Denied
                    assert isinstance(error, kind), (call, error)
                error = await tried(admission, caller(ROLES[role], "other/*"), call)
                assert isinstance(error, NotFound if hasattr(call, "shard") else Denied)
            listed = {type(call) for call in every_call(shard, topic)}
            assert listed | {calls.ListQueues, calls.ListTopics, calls.ListSpaces} == set(VERBS_OF)

    run(main())


@embedded
async def test_nobody_but_an_admin_touches_the_space_system(m: Millrace) -> None:
    await m.queue("access", space="system")
    ref = await engine_of(m).find_queue("system", "access")
    assert ref is not None
    admission = CallAuthorizer(engine_of(m))
    others: tuple[Verb, ...] = ("publish", "work", "read", "manage")
    for call in (
        Submit(ref.shards[0], 0, Publish((NewMessage(b"x"),))),
        Submit(ref.shards[0], 0, LeaseMessages(1, 1)),
        Submit(CATALOG, 0, CreateQueue("system", "x", SpecPart())),
        calls.Peek(ref.shards[0], 0, None, 1),
        calls.FindQueue("system", "access"),
    ):
        error = await tried(admission, caller(others, "*/*"), call)
        is_by_name = isinstance(call, calls.FindQueue) or call.shard == CATALOG
        assert isinstance(error, Denied if is_by_name else NotFound)
        assert await tried(admission, caller(("admin",), "system/*"), call) is None


@embedded
async def test_a_queue_is_placed_only_beside_one_that_the_caller_may_publish_to(
    m: Millrace,
) -> None:
    admission, _, _ = await scene(m)
    may = Rule(True, ("manage",), "default", "mine")

    async def error_of(beside: str, *rules: Rule) -> MillraceError | None:
        who = Caller(Principal("me", (may, *rules)))
        command = CreateQueue("default", "mine", SpecPart(), beside=beside)
        return await tried(admission, who, Submit(CATALOG, 0, command))

    assert isinstance(await error_of("default/orders"), Denied)
    assert await error_of("default/orders", Rule(True, ("publish",), "default", "orders")) is None
    # The answer would tell whether there is such a queue.
    everywhere = Rule(True, VERBS, "*", "*")
    assert isinstance(await error_of("other/orders", everywhere), Invalid)


@embedded
async def test_commands_are_asked_of_the_right_kind_of_shard(m: Millrace) -> None:
    admission, shard, topic = await scene(m)
    who = caller(VERBS, "*/*")
    second = ShardId(shard + 1)
    for call in (
        Submit(CATALOG, 0, Publish((NewMessage(b"x"),))),
        Submit(CATALOG, 0, Purge()),
        Submit(shard, 0, CreateQueue("default", "x", SpecPart())),
        Submit(shard, 0, CreateTopic("default", "x")),
        Submit(shard, 0, ConfigureTopic("default", "x", 1, 1)),
        Submit(shard, 0, DeleteTopic("default", "x")),
        Submit(topic, 0, LeaseMessages(1, 1)),
        Submit(topic, 0, Pin(1)),
        Submit(topic, 0, Purge()),
        Submit(shard, 0, Subscribe("s", "default", "orders", "")),
        Submit(shard, 0, LeaseFromShards((shard,), 1, 1)),
        Submit(shard, 0, LeaseFromShards((second, shard), 1, 1)),
        Submit(shard, 0, LeaseFromShards((shard, topic), 1, 1)),
        Submit(second, 0, LeaseFromShards((shard, second), 1, 1)),
        Submit(shard, 0, SnapshotShards(((shard, NEXT), (shard, NEXT)))),
        Submit(second, 0, ApplyTransaction(((shard, Pin(1)),))),
        Submit(shard, 0, ApplyTransaction(((shard, Pin(1)), (topic, Pin(1))))),
    ):
        assert isinstance(await tried(admission, who, call), Invalid), call
    for strange in (ShardId(999), ShardId(2**62)):
        assert isinstance(await tried(admission, who, Submit(strange, 0, Pin(1))), NotFound)


@embedded
async def test_a_name_that_was_deleted_is_found_under_its_new_shard(m: Millrace) -> None:
    await m.queue("orders")
    admission = CallAuthorizer(engine_of(m))
    await m.delete_queue("orders")
    queue = await m.queue("orders")
    who = caller(("publish",))
    assert (
        await tried(admission, who, Submit(queue.shards.first, 0, Publish((NewMessage(b"x"),))))
        is None
    )
    deny = Caller(
        Principal("me", (parse_rule("allow * */*"), parse_rule("deny publish default/*")))
    )
    call = Submit(queue.shards.first, 0, Publish((NewMessage(b"x"),)))
    assert isinstance(await tried(admission, deny, call), Denied)


@embedded
async def test_what_was_allowed_once_allows_nothing_else(m: Millrace) -> None:
    admission, shard, topic = await scene(m)
    await m.queue("other")
    other = await engine_of(m).find_queue("default", "other")
    assert other is not None
    who = caller(("publish",))
    publish = Publish((NewMessage(b"x"),))
    for _ in range(2):
        assert await tried(admission, who, Submit(shard, 0, publish)) is None
        assert isinstance(
            await tried(admission, who, Submit(shard, 0, LeaseMessages(1, 1))), Denied
        )
        assert isinstance(await tried(admission, who, Submit(topic, 0, publish)), NotFound)
        assert isinstance(
            await tried(admission, who, Submit(other.shards[0], 0, publish)), NotFound
        )
        assert isinstance(await tried(admission, caller(()), Submit(shard, 0, publish)), NotFound)
    anyone = caller(VERBS, "*/*")
    for _ in range(2):
        assert await tried(admission, anyone, Submit(topic, 0, publish)) is None
        assert isinstance(
            await tried(admission, anyone, Submit(topic, 0, LeaseMessages(1, 1))), Invalid
        )


@embedded
async def test_sec_10_a_shard_of_others_is_answered_as_one_that_is_not_there(m: Millrace) -> None:
    shard = (await m.queue("secret-plans", space="tb")).shards.first
    asked: list[ShardId] = []
    engine = engine_of(m)
    name_of = engine.name_of

    async def counted(at: ShardId) -> calls.ShardName | None:
        asked.append(at)
        return await name_of(at)

    engine.name_of = counted  # type: ignore[method-assign,assignment]
    admission = CallAuthorizer(engine)
    assert await tried(admission, caller(VERBS, "tb/*"), calls.FindName(shard)) is None
    for stranger in (caller(()), caller(VERBS, "ta/*")):
        for make in (
            lambda at: calls.FindName(at),
            lambda at: calls.ReadSpec(at),
            lambda at: Submit(at, 0, Publish((NewMessage(b"x"),))),
            lambda at: Submit(at, 0, ApplyTransaction(((at, Pin(1)),))),
        ):
            asked.clear()
            answers = [
                repr(await tried(admission, stranger, make(at)))
                for at in (shard, shard, ShardId(999))
            ]
            assert "secret" not in answers[0]
            assert answers == [answers[2]] * 3
            # The engine is asked each time: how long it takes tells nothing either.
            assert asked == [shard, shard, ShardId(999)]
    # Who may do anything with it is told what they may not.
    error = await tried(admission, caller(("publish",), "tb/*"), calls.ReadSpec(shard))
    assert isinstance(error, Denied)


@embedded
async def test_sec_14_the_whole_server_takes_that_nothing_is_denied(m: Millrace) -> None:
    admission = CallAuthorizer(engine_of(m))
    whole = (calls.BackUp("/x", False), calls.ReadBackup(), calls.Unfollow(), calls.ReadHealth())
    for rules, is_allowed in (
        (("allow admin */*",), True),
        (("allow * */*",), True),
        (("allow admin */*", "deny * tb/*"), False),
        (("allow admin */*", "deny read tb/secret"), False),
        (("allow admin system/*",), False),
        (("allow admin */orders",), False),
    ):
        who = Caller(Principal("me", tuple(map(parse_rule, rules))))
        for call in whole:
            error = await tried(admission, who, call)
            assert error is None if is_allowed else isinstance(error, Denied), (rules, call)
