"""A server is killed while boto3 sends, receives and deletes.

Nothing acknowledged is lost, what was deleted stays so, and receipts from before a kill are good
after it. Of a FIFO queue some workers release the first message of an answer, or delete the last one
first: a message is received only when all older ones of its group were deleted, or precede it in
the same answer.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import BotoCoreError, ClientError

import millrace
from tests.crash.served.loop import Stage
from tests.server.aws.site import Aws, make_key
from tests.server.process import Process
from tests.support.timeouts import scaled

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient
    from types_boto3_sqs.type_defs import MessageTypeDef

HOLD_SECONDS = int(scaled(120))
"""Longer than all of it takes: nobody else may have the message meanwhile."""


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

    def sends_in_order(self, group: str, body: str) -> None:
        """It is sent next of its group: again until the server answers, and only then another."""
        with self._lock:
            self._groups.setdefault(group, []).append(body)

    def was_received_in_order(self, bodies: list[str]) -> None:
        """See that nothing older of a group waits behind what was received."""
        with self._lock:
            before: set[str] = set()
            for body in bodies:
                sent = self._groups[body[-1]]
                older = set(sent[: sent.index(body)]) - self.ends - before
                if older:
                    self.wrong.append(f"{body} came before {sorted(older)}")
                before.add(body)

    def gives_back(self, body: str) -> None:
        with self._lock:
            self.given_back[body] = self.given_back.get(body, 0) + 1

    def ending(self, *bodies: str) -> None:
        with self._lock:
            self.ends.update(bodies)

    def was_deleted(self, *bodies: str) -> None:
        with self._lock:
            self.deleted.update(bodies)


class Crowd:
    """Threads that go on by themselves until they are told to stop."""

    def __init__(self, sqs: SQSClient, ledger: Ledger, url: str, fifo: str) -> None:
        self._sqs, self._ledger = sqs, ledger
        self._url, self._fifo = url, fifo
        self._stopping = threading.Event()
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
                    if error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
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
        body = self._ledger.body()
        self._ledger.sends_in_order(body[-1], body)
        # Sent again until it is known: the id sees to it that it is there once.
        while not self._stopping.is_set():
            try:
                self._sqs.send_message(
                    QueueUrl=self._fifo,
                    MessageBody=body,
                    MessageGroupId=body[-1],
                    MessageDeduplicationId=body,
                )
            except BotoCoreError:
                self._stopping.wait(0.05)
            else:
                self._ledger.was_sent(body)
                return

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
        self._ledger.ending(one["Body"])
        while True:
            try:
                self._sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
            except BotoCoreError:
                time.sleep(0.05)
            else:
                self._ledger.was_deleted(one["Body"])
                return

    def _work(self) -> None:
        for one in self._take(self._url, 1):
            self._delete(self._url, one)

    def _take_in_order(self) -> list[MessageTypeDef]:
        found = self._take(self._fifo, 10)
        self._ledger.was_received_in_order([one["Body"] for one in found])
        return found

    def _work_in_order(self) -> None:
        for one in self._take_in_order():
            self._delete(self._fifo, one)

    def _work_backwards(self) -> None:
        for one in reversed(self._take_in_order()):
            self._delete(self._fifo, one)

    def _give_back_in_order(self) -> None:
        """Release the first message, and delete the others."""
        found = self._take_in_order()
        if found:
            self._release(found[0])
        for one in found[1:]:
            self._delete(self._fifo, one)

    def _release(self, one: MessageTypeDef) -> None:
        """Make it visible at once, however often the server is killed meanwhile."""
        self._ledger.gives_back(one["Body"])
        is_again = False
        while True:
            try:
                self._sqs.change_message_visibility(
                    QueueUrl=self._fifo, ReceiptHandle=one["ReceiptHandle"], VisibilityTimeout=0
                )
            except BotoCoreError:
                is_again = True
                time.sleep(0.05)
            except ClientError:
                # It was released by the first attempt, and another worker has deleted it.
                assert is_again
                return
            else:
                return

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
            begun = len(ledger.deleted)
            while len(ledger.deleted) < begun + 20:
                assert not ledger.wrong
                time.sleep(0.01)
        left = asyncio.run(left_at(stage.server))
    finally:
        stage.close()
    lost = ledger.acknowledged - ledger.ends - left
    ledger.wrong += [f"{body} was lost" for body in sorted(lost)]
    ledger.wrong += [f"{body} was deleted, and is there" for body in ledger.deleted & left]
    return ledger


def judge(ledger: Ledger) -> None:
    assert not ledger.wrong, ledger.wrong[:20]
    assert ledger.acknowledged
    assert ledger.deleted
    assert ledger.over_kills > 0
    assert ledger.given_back
    # Who held a message over a kill had it alone.
    again = [
        body for body, times in ledger.seen.items() if times > 1 + ledger.given_back.get(body, 0)
    ]
    assert not again, again[:20]


def test_nothing_is_lost_or_comes_again_when_a_server_is_killed(tmp_path: Path) -> None:
    judge(run(tmp_path, 3, 0))


@pytest.mark.long
@pytest.mark.parametrize("frontends", [0, 2], ids=["engine", "front ends"])
def test_nothing_is_lost_when_a_server_is_killed_often(tmp_path: Path, frontends: int) -> None:
    judge(run(tmp_path, 20, frontends))
