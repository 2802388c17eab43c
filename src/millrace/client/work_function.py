"""Calls of a worker's function: on the event loop, or in a thread if it is not asynchronous."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

from millrace.client.lease import Lease, follow, succession_of
from millrace.client.transaction import Transaction
from millrace.core import validate
from millrace.errors import Invalid

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class WorkFunction:
    """A function of the program, which takes a number of arguments and optionally a transaction.

    It takes a transaction if it has one more parameter without default. Its signature is checked
    when the worker is made, not when the first message arrives.
    """

    def __init__(self, function: Callable[..., object], field: str, arguments: int) -> None:
        if not callable(function):
            raise Invalid(f"{field} is {validate.shown(function)}, not a function", field=field)
        self._function = function
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            type(function).__call__
        )
        wanted = _required(function, arguments)
        if not arguments <= wanted <= arguments + 1:
            raise Invalid(
                f"{field} takes {wanted} arguments, not {arguments}, nor {arguments + 1} with a "
                "transaction",
                field=field,
                limit=arguments + 1,
            )
        self.takes_transaction = wanted > arguments

    def begin(self, threads: Executor, arguments: tuple[object, ...]) -> asyncio.Future[object]:
        """Start a call and return its future; cancelling the future does not stop a thread."""
        loop = asyncio.get_running_loop()
        if self.is_async:
            return loop.create_task(self._await(arguments))
        context = contextvars.copy_context()
        return loop.run_in_executor(threads, context.run, self._call, arguments)

    async def _await(self, arguments: tuple[object, ...]) -> object:
        result = self._function(*arguments)
        return await result if inspect.isawaitable(result) else result

    def _call(self, arguments: tuple[object, ...]) -> object:
        try:
            result = self._function(*arguments)
        except StopIteration as error:
            # A future cannot hold a StopIteration.
            raise RuntimeError("the function raised StopIteration") from error
        if inspect.isawaitable(result):
            # Never awaited, so that nothing of it has run.
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError("a plain function returned an awaitable; declare it with async def")
        return result


def _required(function: Callable[..., object], arguments: int) -> int:
    """Return how many positional arguments a function requires, at least `arguments` if it takes
    them."""
    try:
        params = inspect.signature(function).parameters.values()
    except ValueError:
        # Some functions written in C have no signature.
        return arguments
    positional = [param for param in params if param.kind in _POSITIONAL]
    required = sum(param.default is inspect.Parameter.empty for param in positional)
    named = any(
        param.kind is inspect.Parameter.KEYWORD_ONLY and param.default is inspect.Parameter.empty
        for param in params
    )
    takes_any = any(param.kind is inspect.Parameter.VAR_POSITIONAL for param in params)
    if named or (len(positional) < arguments and not takes_any):
        # No call of it can succeed.
        return len(positional) if not named else -1
    return max(required, arguments)


class WorkItem:
    """A message in work, or its successor once the function has replaced it."""

    def __init__(self, lease: Lease, on_replaced: Callable[[Lease], None]) -> None:
        self._succession = succession_of(lease)
        self._succession.on_replaced = on_replaced
        follow(lease)
        self.transaction: Transaction | None = None
        """Transaction of the last function call."""
        self.result: object = None
        self.error: BaseException | None = None
        self._calling: asyncio.Future[object] | None = None
        self._in_thread = False
        self.is_lost = False
        self.is_given_up = False

    @property
    def lease(self) -> Lease:
        """Lease that the worker holds now."""
        return self._succession.newest

    async def call(
        self, function: WorkFunction, threads: ThreadPoolExecutor, arguments: tuple[object, ...]
    ) -> bool:
        """Call a function; return True if it returned and the message is still the worker's."""
        if self.is_lost or self.is_given_up:
            return False
        self._in_thread = not function.is_async
        self._calling = calling = function.begin(threads, arguments)
        # Not awaited directly: cancelling the call must not look like cancelling this task.
        await asyncio.wait([calling])
        self.error = asyncio.CancelledError() if calling.cancelled() else calling.exception()
        self.result = None if self.error is not None else calling.result()
        return self.error is None and not self.is_lost and not self.is_given_up

    def lose(self) -> None:
        """Mark the lease as lost, and cancel the function; a thread runs on to its end."""
        if self._calling is None or not self._calling.done():
            self.is_lost = True
            if self._calling is not None and not self._in_thread:
                self._calling.cancel()

    def give_up(self) -> None:
        """Stop waiting for the function; a thread runs on unobserved."""
        if self._calling is None or self._calling.cancel():
            self.is_given_up = True
