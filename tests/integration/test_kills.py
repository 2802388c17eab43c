"""A server is killed while boto3 sends, receives and deletes.

Nothing acknowledged is lost, what was deleted stays so, and receipts from before a kill are good
after it.

Of a FIFO queue a message is received only when all older ones of its group were deleted, or precede
it in the same answer. Some workers release the first message of a group and hold the others until
it was received again; some release the last one, which nobody may receive yet; some extend the
last one over a kill, and let the others time out. What is left at the end is received in the order
in which it was sent.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from botocore.exceptions import BotoCoreError, ClientError

import millrace
from tests.crash.served.loop import Stage
from tests.server.aws.site import Aws, make_key
from tests.server.server_process import Process
from tests.support.timeouts import scaled

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient
    from types_boto3_sqs.type_defs import MessageTypeDef

HOLD_SECONDS = int(scaled(120))
"""Longer than all of it takes: nobody else may have the message meanwhile."""

BACK_SECONDS_MAX = scaled(60)
"""A message that was given back is received by then, also if the server is killed meanwhile."""

FIFO_GROUPS = 4

WAITING_MAX = 200
"""Messages of the FIFO queue: with more of them workers would meet less often."""

T = TypeVar("T")


def group_of(body: str) -> str:
    """The message group of what is sent to the FIFO queue."""
    return str(int(body.rpartition("-")[2]) % FIFO_GROUPS)


def is_refused(error: ClientError) -> bool:
    """Whether the server said so, and is not just unable to answer."""
    return error.response["ResponseMetadata"]["HTTPStatusCode"] < 500


class RefusedAgainError(Exception):
    """A call was refused that had no answer when it was made first."""


def until_known(call: Callable[[], T]) -> T:
    """Call until the server answers; returns the answer.

    Raises:
        ClientError: the server refuses it.
        RefusedAgainError: it refuses what it may have done already.
    """
    is_again = False
    while True:
        try:
            return call()
        except BotoCoreError:
            is_again = True
        except ClientError as error:
            if not is_refused(error):
                is_again = True
            elif is_again:
                raise RefusedAgainError from error
            else:
                raise
        time.sleep(0.05)


class Ledger:
    """What was sent and deleted, as far as the server has said so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self.acknowledged: set[str] = set()
        self.deleted: set[str] = set()
        self.seen: dict[str, int] = {}
        self.ends: set[str] = set()
        """Of what the server was told to delete, whether or not it has said that it did."""
        self.given_back: dict[str, int] = {}
        """How often a worker released a message: so often it may be received again."""
        self.wrong: list[str] = []
        self.over_kills = 0
        self._ended_in_order = 0
        self.beside = 0
        """Messages that were received again while the same answer's next ones were still held."""
        self.extended_over_kills = 0
        """Messages that were extended before a kill and blocked what came after them, not what came
        before."""
        self._groups: dict[str, list[str]] = {}
        """What was sent to the FIFO queue, by group, in order."""

    def body(self) -> str:
        with self._lock:
            self._number += 1
            return f"message-{self._number}"

    def was_sent(self, *bodies: str) -> None:
        with self._lock:
            self.acknowledged.update(bodies)

    def was_received(self, body: str) -> None:
        with self._lock:
            if body in self.deleted:
                self.wrong.append(f"{body} was deleted, and came again")
            self.seen[body] = self.seen.get(body, 0) + 1

    def next_of_group(self, count: int) -> list[str]:
        """Bodies of one group that are sent next: again until the server answers."""
        bodies = [self.body()]
        while len(bodies) < count:
            body = self.body()
            if group_of(body) == group_of(bodies[0]):
                bodies.append(body)
        with self._lock:
            self._groups.setdefault(group_of(bodies[0]), []).extend(bodies)
        return bodies

    def was_received_in_order(self, bodies: list[str]) -> None:
        """See that nothing older of a group waits behind what was received."""
        with self._lock:
            before: set[str] = set()
            for body in bodies:
                sent = self._groups[group_of(body)]
                older = set(sent[: sent.index(body)]) - self.ends - before
                if older:
                    self.wrong.append(f"{body} came before {sorted(older)}")
                before.add(body)

    def times(self, body: str) -> int:
        """How often it was received."""
        with self._lock:
            return self.seen.get(body, 0)

    def waiting_in_order(self) -> int:
        """How many messages of the FIFO queue nobody has deleted."""
        with self._lock:
            return sum(map(len, self._groups.values())) - self._ended_in_order

    def left_in_order(self) -> dict[str, list[str]]:
        """What of each group of the FIFO queue nobody has deleted."""
        with self._lock:
            left = {
                group: [body for body in sent if body not in self.ends]
                for group, sent in self._groups.items()
            }
        return {group: bodies for group, bodies in left.items() if bodies}

    def gives_back(self, body: str) -> None:
        with self._lock:
            self.given_back[body] = self.given_back.get(body, 0) + 1

    def ending(self, *bodies: str, in_order: bool = False) -> None:
        with self._lock:
            self.ends.update(bodies)
            self._ended_in_order += len(bodies) * in_order

    def was_deleted(self, *bodies: str) -> None:
        with self._lock:
            self.deleted.update(bodies)


class Crowd:
    """Threads that go on by themselves until they are told to stop."""

    def __init__(self, sqs: SQSClient, ledger: Ledger, url: str, fifo: str) -> None:
        self._sqs, self._ledger = sqs, ledger
        self._url, self._fifo = url, fifo
        self._stopping = threading.Event()
        self._chance = random.Random(11)
        self.kills = 0
        acts: tuple[Callable[[], None], ...] = (
            self._send,
            self._send_batch,
            self._send_in_order,
            self._work,
            self._work_batch,
            self._work_in_order,
            self._work_backwards,
            self._give_back_in_order,
            self._give_back_last,
            self._extend_in_order,
            self._hold,
        )
        self._threads = [threading.Thread(target=self._go_on, args=(act,)) for act in acts]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _go_on(self, act: Callable[[], None]) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    act()
                except BotoCoreError:
                    # Nobody is there, or was killed meanwhile: what came of it is not known.
                    self._stopping.wait(0.05)
                except ClientError as error:
                    if is_refused(error):
                        raise
        except BaseException as error:
            self._ledger.wrong.append(f"{act.__name__}: {error!r}")
            raise

    def _send(self) -> None:
        body = self._ledger.body()
        self._sqs.send_message(QueueUrl=self._url, MessageBody=body)
        self._ledger.was_sent(body)

    def _send_batch(self) -> None:
        bodies = [self._ledger.body() for _ in range(10)]
        found = self._sqs.send_message_batch(
            QueueUrl=self._url,
            Entries=[
                {"Id": str(number), "MessageBody": body} for number, body in enumerate(bodies)
            ],
        )
        self._ledger.was_sent(*(bodies[int(one["Id"])] for one in found["Successful"]))

    def _send_in_order(self) -> None:
        """Send one message or a batch: again until it is known, the ids see to it that it is there
        once. Otherwise the next one would be sent before it."""
        if self._ledger.waiting_in_order() > WAITING_MAX:
            self._stopping.wait(0.02)
            return
        bodies = self._ledger.next_of_group(self._chance.choice((1, 2, 4)))
        if len(bodies) == 1:
            until_known(
                lambda: self._sqs.send_message(
                    QueueUrl=self._fifo,
                    MessageBody=bodies[0],
                    MessageGroupId=group_of(bodies[0]),
                    MessageDeduplicationId=bodies[0],
                )
            )
        else:
            found = until_known(
                lambda: self._sqs.send_message_batch(
                    QueueUrl=self._fifo,
                    Entries=[
                        {
                            "Id": body,
                            "MessageBody": body,
                            "MessageGroupId": group_of(body),
                            "MessageDeduplicationId": body,
                        }
                        for body in bodies
                    ],
                )
            )
            assert not found.get("Failed"), found["Failed"]
        self._ledger.was_sent(*bodies)

    def _take(self, url: str, count: int) -> list[MessageTypeDef]:
        found = self._sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=count,
            WaitTimeSeconds=1,
            VisibilityTimeout=HOLD_SECONDS,
        ).get("Messages", [])
        for one in found:
            self._ledger.was_received(one["Body"])
        return found

    def _delete(self, url: str, one: MessageTypeDef) -> None:
        """Delete it, however often the server is killed meanwhile."""
        self._ledger.ending(one["Body"], in_order=url == self._fifo)
        until_known(
            lambda: self._sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
        )
        self._ledger.was_deleted(one["Body"])

    def _work(self) -> None:
        for one in self._take(self._url, 1):
            self._delete(self._url, one)

    def _take_in_order(self) -> list[MessageTypeDef]:
        """Receive from the FIFO queue: again with the same attempt id until it is known what."""
        attempt = f"attempt-{self._ledger.body()}"
        answer = until_known(
            lambda: self._sqs.receive_message(
                QueueUrl=self._fifo,
                MaxNumberOfMessages=10,
                WaitTimeSeconds=1,
                VisibilityTimeout=HOLD_SECONDS,
                ReceiveRequestAttemptId=attempt,
            )
        )
        found = answer.get("Messages", [])
        bodies = [one["Body"] for one in found]
        self._ledger.was_received_in_order(bodies)
        for body in bodies:
            self._ledger.was_received(body)
        return found

    def _work_in_order(self) -> None:
        for one in self._take_in_order():
            self._delete(self._fifo, one)

    def _work_backwards(self) -> None:
        for one in reversed(self._take_in_order()):
            self._delete(self._fifo, one)

    def _take_several(self) -> list[MessageTypeDef]:
        """Messages of one group, several or none; what else came is deleted."""
        found = self._take_in_order()
        by_group: dict[str, list[MessageTypeDef]] = {}
        for one in found:
            by_group.setdefault(group_of(one["Body"]), []).append(one)
        several = max(by_group.values(), key=len, default=[])
        several = several if len(several) > 1 else []
        for one in found:
            if one not in several:
                self._delete(self._fifo, one)
        return several

    def _give_back_in_order(self) -> None:
        """Release the first message, and hold the next ones until it was received again."""
        found = self._take_several()
        if found:
            times = self._ledger.times(found[0]["Body"])
            self._give_back(found[0], 0)
            if self._wait_until_received(found[0], times):
                self._ledger.beside += 1
        for one in found[1:]:
            self._delete(self._fifo, one)

    def _give_back_last(self) -> None:
        """Release the last message, and hold those before it for a while: nobody receives it."""
        found = self._take_several()
        if not found:
            return
        self._give_back(found.pop(), 0)
        begun = len(self._ledger.deleted)
        while len(self._ledger.deleted) < begun + 30 and not self._stopping.wait(0.02):
            pass
        for one in found:
            self._delete(self._fifo, one)

    def _extend_in_order(self) -> None:
        """Extend the last message, and let the others time out once the server was killed."""
        found = self._take_several()
        if not found:
            return
        last, kills = found.pop(), self.kills
        self._hide(last, 2 * HOLD_SECONDS)
        while self.kills == kills and not self._stopping.wait(0.02):
            pass
        is_over_kill = self.kills > kills
        before = [(one, self._ledger.times(one["Body"])) for one in found]
        for one in found:
            self._give_back(one, 1)
        if all(self._wait_until_received(one, times) for one, times in before):
            self._ledger.extended_over_kills += is_over_kill
        self._delete(self._fifo, last)

    def _wait_until_received(self, one: MessageTypeDef, times: int) -> bool:
        """Wait until somebody received it again; False: all of this ends."""
        until = time.monotonic() + BACK_SECONDS_MAX
        while self._ledger.times(one["Body"]) <= times:
            if self._stopping.wait(0.02):
                return False
            if time.monotonic() > until:
                self._ledger.wrong.append(f"{one['Body']} was given back, and nobody received it")
                return False
        return True

    def _give_back(self, one: MessageTypeDef, seconds: int) -> None:
        """Let it be visible so soon, however often the server is killed meanwhile."""
        self._ledger.gives_back(one["Body"])
        # It may have been given back by the first attempt, and another worker has it.
        with suppress(RefusedAgainError):
            self._hide(one, seconds)

    def _hide(self, one: MessageTypeDef, seconds: int) -> None:
        until_known(
            lambda: self._sqs.change_message_visibility(
                QueueUrl=self._fifo, ReceiptHandle=one["ReceiptHandle"], VisibilityTimeout=seconds
            )
        )

    def drain(self) -> None:
        """Receive what is left of the FIFO queue, in order, once nobody else does."""
        left = self._ledger.left_in_order()
        until = time.monotonic() + BACK_SECONDS_MAX
        found: dict[str, list[str]] = {}
        while not all(set(bodies) <= set(found.get(of, [])) for of, bodies in left.items()):
            if time.monotonic() > until:
                self._ledger.wrong.append(f"of {left} only {found} came")
                return
            for one in self._take_in_order():
                found.setdefault(group_of(one["Body"]), []).append(one["Body"])
                self._delete(self._fifo, one)
        if found != left:
            self._ledger.wrong.append(f"of {left} came {found}")

    def _work_batch(self) -> None:
        found = self._take(self._url, 10)
        if not found:
            return
        bodies = [one["Body"] for one in found]
        self._ledger.ending(*bodies)
        ended = self._sqs.delete_message_batch(
            QueueUrl=self._url,
            Entries=[
                {"Id": str(number), "ReceiptHandle": one["ReceiptHandle"]}
                for number, one in enumerate(found)
            ],
        )
        self._ledger.was_deleted(*(bodies[int(one["Id"])] for one in ended["Successful"]))

    def _hold(self) -> None:
        """Hold messages until the server was killed, and delete them then."""
        kills, found = self.kills, self._take(self._url, 3)
        while found and self.kills == kills and not self._stopping.wait(0.02):
            pass
        for one in found:
            self._delete(self._url, one)
        self._ledger.over_kills += len(found) if self.kills > kills else 0


async def left_at(server: Process) -> set[str]:
    """All that is there, with whomever it is."""
    left: set[str] = set()
    async with millrace.connect(f"http://127.0.0.1:{server.port}", token=server.token) as m:
        for name in ("plain", "order.fifo"):
            queue = await m.find(name)
            async with queue.snapshot() as snapshot:
                async for row in snapshot.rows():
                    left.add((row.body or b"").decode())
    return left


def run(folder: Path, kills: int, frontends: int) -> Ledger:
    """Kill so often; returns what came of it."""
    chance, ledger = random.Random(7), Ledger()
    stage = Stage(folder, frontends)
    try:
        stage.start()
        key = make_key(folder / "data", "ada", "allow * */*")
        sqs = Aws(f"http://127.0.0.1:{stage.port}", key).sqs
        url = sqs.create_queue(QueueName="plain")["QueueUrl"]
        fifo = sqs.create_queue(QueueName="order.fifo", Attributes={"FifoQueue": "true"})
        crowd = Crowd(sqs, ledger, url, fifo["QueueUrl"])
        with crowd:
            for _ in range(kills):
                begun = len(ledger.deleted)
                # Killed in the midst of work, not before it.
                while len(ledger.deleted) < begun + chance.randint(20, 200):
                    assert not ledger.wrong
                    time.sleep(0.01)
                stage.kill_engine(chance)
                crowd.kills += 1
            begun, until = len(ledger.deleted), time.monotonic() + BACK_SECONDS_MAX
            while len(ledger.deleted) < begun + 20 or not ledger.extended_over_kills:
                assert not ledger.wrong
                assert time.monotonic() < until, "nobody goes on"
                time.sleep(0.01)
        left = asyncio.run(left_at(stage.server))
        lost = ledger.acknowledged - ledger.ends - left
        ledger.wrong += [f"{body} was lost" for body in sorted(lost)]
        ledger.wrong += [f"{body} was deleted, and is there" for body in ledger.deleted & left]
        crowd.drain()
    finally:
        stage.close()
    return ledger


def judge(ledger: Ledger) -> None:
    assert not ledger.wrong, ledger.wrong[:20]
    assert ledger.acknowledged
    assert ledger.deleted
    assert ledger.over_kills > 0
    assert ledger.beside > 0
    assert ledger.extended_over_kills > 0
    # Who held a message over a kill had it alone.
    again = [
        body for body, times in ledger.seen.items() if times > 1 + ledger.given_back.get(body, 0)
    ]
    assert not again, again[:20]


@pytest.mark.process
def test_nothing_is_lost_or_comes_again_when_a_server_is_killed(tmp_path: Path) -> None:
    judge(run(tmp_path, 3, 0))


@pytest.mark.long
@pytest.mark.parametrize("frontends", [0, 2], ids=["engine", "front ends"])
def test_nothing_is_lost_when_a_server_is_killed_often(tmp_path: Path, frontends: int) -> None:
    judge(run(tmp_path, 20, frontends))
