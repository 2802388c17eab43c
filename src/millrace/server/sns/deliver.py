"""The deliverer: sends what is published to endpoints that are subscribed by HTTP.

What is for an endpoint waits in a queue of its own, to which the topic forwards. The deliverer
leases from it, sends, and settles what the endpoint has taken.

Rule 1: nothing is settled that the endpoint did not take; what it took may be sent again after a
crash.
Rule 2: how often and when a message is sent again says the subscription; then it is a dead letter,
as the queue has it.
Rule 3: several processes may deliver from the same queues. Each knows those that were there when it
began and those that were subscribed through it: one that ends leaves them to the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import NamedTuple
from uuid import uuid4

from millrace import limits
from millrace.client.lease import Lease
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.core.topic_cells import SubscriptionCell
from millrace.errors import Fatal, Gone, MillraceError, NotFound, Stale
from millrace.server.aws.known import PREFIX
from millrace.server.aws.names import Home, arn_of, home_of
from millrace.server.clock import now_ms
from millrace.server.sns.delivery_policy import Delivery, Retries
from millrace.server.sns.ended import Ended, token_of
from millrace.server.sns.envelope import SUBSCRIBED, UNSUBSCRIBED, confirmation
from millrace.server.sns.exchange import Exchange, KnownTopic
from millrace.server.sns.handing import handed
from millrace.server.sns.headers import (
    BASE,
    BODY_FOR,
    ENDPOINT,
    HIDDEN,
    ID,
    PENDING,
    PROTOCOL,
)
from millrace.server.sns.post import Sending, post
from millrace.server.sns.reach import Reach
from millrace.server.sns.subscription_attributes import RAW_DELIVERY, delivery
from millrace.server.sns.tokens import token_of_cell
from millrace.server.sqs.values import attributes_out

CONFIRM_PATH = "/_aws/sns/confirm"
"""Where whoever was asked says yes."""

_logger = logging.getLogger("millrace.server")


class _Line(NamedTuple):
    """A subscription of an endpoint, as it is now."""

    arn: str
    notes: dict[str, str]
    how: Delivery


class Deliverer:
    """Sends what waits for endpoints."""

    def __init__(self, exchange: Exchange, usual: Home, reach: Reach) -> None:
        """`usual`: the account and region whose space is `default`."""
        self.reach = reach
        self._exchange = exchange
        self._usual = usual
        self._lines: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Go on with what was subscribed before."""
        millrace = self._millrace
        for space in await millrace.spaces():
            for name in await millrace.queues(space=space):
                if name.startswith(HIDDEN):
                    self.take(space, name)

    @property
    def _millrace(self) -> Millrace:
        return self._exchange.desk.millrace

    def take(self, space: str, name: str) -> None:
        """Deliver what comes to this queue."""
        at = (space, name)
        if at in self._lines:
            # It was deleted, and is made again before that was noticed.
            self._lines[at].cancel()
        task = asyncio.get_running_loop().create_task(self._deliver(space, name))
        self._lines[at] = task
        task.add_done_callback(lambda done: self._ended(at, done))

    def _ended(self, at: tuple[str, str], task: asyncio.Task[None]) -> None:
        if self._lines.get(at) is task:
            del self._lines[at]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _logger.error("what waits for an endpoint in %s/%s", *at, exc_info=error)

    def ask_endpoint(self, space: str, topic: str, cell: SubscriptionCell) -> None:
        """Ask the endpoint of a subscription whether it wants what the topic has."""
        self._begin(self._ask(space, topic, cell))

    def tell_ended(self, known: KnownTopic, cell: SubscriptionCell) -> None:
        """Tell the endpoint of a subscription that has ended so, and how to have it back; nobody
        waits for it."""
        self._begin(self._tell_ended(known, cell))

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._asking.add(task)
        task.add_done_callback(self._asked)

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _logger.error("an endpoint could not be asked or told", exc_info=error)

    async def stop(self) -> None:
        """Send nothing more; what was not settled is sent by whoever comes next."""
        tasks = [*self._lines.values(), *self._asking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- Messages -------------------------------------------------------------------------------

    async def _deliver(self, space: str, name: str) -> None:
        """Until its subscription has ended; then the queue goes."""
        while True:
            try:
                queue = await self._millrace.find(name, space=space)
                topic = dict((await queue.spec()).notes).get(f"{PREFIX}topic", "")
                if not topic:
                    # Somebody's own, which is called so.
                    return
                await self._follow(queue, topic, await self._line(queue, topic))
            except NotFound as error:
                if error.field != "queue":
                    # It was ended by another protocol, or by a process that crashed over it.
                    await self._millrace.delete_queue(name, space=space)
                return
            except Fatal:
                return
            except MillraceError as error:
                _logger.warning("what waits for an endpoint in %s/%s: %s", space, name, error)
                await asyncio.sleep(limits.SNS_TROUBLE_SECONDS)

    async def _follow(self, queue: Queue, topic: str, line: _Line) -> None:
        while True:
            leases = await queue.lease(
                limits.SNS_POST_AT_ONCE_MAX,
                seconds=limits.SNS_POST_LEASE_SECONDS,
                wait=limits.SNS_POST_WAIT_SECONDS,
            )
            if leases or PENDING in line.notes:
                # Nobody may have confirmed it in time, or someone has changed it.
                line = await self._line(queue, topic)
            if leases and PENDING in line.notes:
                # The filter that let nothing pass was changed by another API: it waits on.
                for one in leases:
                    await one.release(delay=limits.SNS_POST_WAIT_SECONDS)
            elif leases:
                await asyncio.gather(*(self._send(line, one) for one in leases))

    async def _line(self, queue: Queue, topic: str) -> _Line:
        known = await self._exchange.look(queue.space, topic)
        wanted = queue.name.removeprefix(HIDDEN)
        home = home_of(queue.space, self._usual) or self._usual
        for cell in await known.subscriptions():
            if cell.name == wanted:
                notes = dict(cell.notes)
                return _Line(
                    f"{arn_of('sns', home, topic)}:{wanted}", notes, delivery(notes, known)
                )
        raise NotFound("the subscription has ended", field="subscription")

    async def _send(self, line: _Line, lease: Lease) -> None:
        notes, arn = line.notes, line.arn
        own = dict(lease.headers)
        other = own.get(BODY_FOR[notes[PROTOCOL]])
        body = lease.body if other is None else other
        is_raw = notes.get(PREFIX + RAW_DELIVERY) == "true"
        text = body.decode(errors="replace")
        if not is_raw:
            attributes = attributes_out(lease.headers)
            around = self._exchange.around(notes[BASE])
            text = handed(body, lease.headers, attributes, lease.time_ms, arn, around)
        outcome = await post(
            Sending(
                notes[ENDPOINT],
                text,
                "Notification",
                own.get(ID, b"").decode(errors="replace"),
                arn.rpartition(":")[0],
                arn,
                is_raw,
                line.how.content_type,
            ),
            self.reach,
        )
        try:
            if outcome == "done":
                await lease.settle()
            elif outcome == "never":
                await lease.discard()
            else:
                delay = line.how.retries.seconds(lease.failures + 1)
                await lease.release(failed=True, delay=delay)
        except (Stale, Gone):
            # It took longer than the lease: whoever has it now sends it again.
            return

    # --- Confirmation ---------------------------------------------------------------------------

    async def _ask(self, space: str, topic: str, cell: SubscriptionCell) -> None:
        """Send the question, as often as SNS would; whoever did not hear it subscribes again."""
        notes = dict(cell.notes)
        home = home_of(space, self._usual) or self._usual
        arn, id = arn_of("sns", home, topic), str(uuid4())
        known = await self._exchange.look(space, topic)
        token = await token_of_cell(self._exchange, known, cell)
        version = known.told(arn).version
        around = self._exchange.around(notes[BASE])
        url = _confirm_url(notes[BASE], arn, token)
        text = confirmation(id, arn, token, url, now_ms(), around, version)
        retries = delivery(notes, known).retries
        sending = Sending(notes[ENDPOINT], text, SUBSCRIBED, id, arn)
        for failures in range(1, retries.num_retries + 2):
            if await post(sending, self.reach) != "again":
                return
            if not await self._is_pending(space, topic, cell):
                return
            await asyncio.sleep(retries.seconds(failures))

    async def _tell_ended(self, known: KnownTopic, cell: SubscriptionCell) -> None:
        """Tell it as often as is usual, whatever the subscription said of messages: it has ended,
        and an endpoint that does not answer is not to be remembered for long."""
        notes, space, topic = dict(cell.notes), known.topic.space, known.topic.name
        home = home_of(space, self._usual) or self._usual
        arn, id = arn_of("sns", home, topic), str(uuid4())
        await self._exchange.prepare()
        ended = Ended(space, topic, known.shard, cell.name, now_ms(), notes)
        token = token_of(ended, self._exchange.signer)
        around, version = self._exchange.around(notes[BASE]), known.told(arn).version
        url, its = _confirm_url(notes[BASE], arn, token), f"{arn}:{cell.name}"
        text = confirmation(id, arn, token, url, now_ms(), around, version, ended=its)
        retries = Retries()
        sending = Sending(notes[ENDPOINT], text, UNSUBSCRIBED, id, arn, its)
        for failures in range(1, retries.num_retries + 2):
            if await post(sending, self.reach) != "again":
                return
            await asyncio.sleep(retries.seconds(failures))

    async def _is_pending(self, space: str, topic: str, cell: SubscriptionCell) -> bool:
        try:
            known = await self._exchange.look(space, topic)
        except NotFound:
            return False
        cells = await known.subscriptions()
        return any(one.name == cell.name and PENDING in dict(one.notes) for one in cells)


def _confirm_url(base: str, topic: str, token: str) -> str:
    """Where a token is shown."""
    return f"{base}{CONFIRM_PATH}?Action=ConfirmSubscription&TopicArn={topic}&Token={token}"
