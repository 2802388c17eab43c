"""A function that a program gave to be called: on the loop, or in a thread if it is a plain one."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import Executor

from millrace.core import check
from millrace.errors import Invalid

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Function:
    """Takes so many arguments, and a transaction where it has one more parameter without default.

    What is wrong with it is said when it is made, not when the first message comes.
    """

    def __init__(self, function: Callable[..., object], field: str, arguments: int) -> None:
        if not callable(function):
            raise Invalid(f"{field} is {check.shown(function)}, not a function", field=field)
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
        """Call it; the future has its result. One in a thread goes on when that is cancelled."""
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
            # A future does not take it.
            raise RuntimeError("the function raised StopIteration") from error
        if inspect.isawaitable(result):
            # Nobody awaits it here, so that nothing of it was done.
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError("a plain function returned an awaitable; declare it with async def")
        return result


def _required(function: Callable[..., object], arguments: int) -> int:
    """How many arguments it must be given; more may be given where it says so."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        # Some that are written in C do not tell.
        return arguments
    positional = [each for each in parameters if each.kind in _POSITIONAL]
    required = sum(each.default is inspect.Parameter.empty for each in positional)
    named = any(
        each.kind is inspect.Parameter.KEYWORD_ONLY and each.default is inspect.Parameter.empty
        for each in parameters
    )
    takes_any = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters)
    if named or (len(positional) < arguments and not takes_any):
        # Calling it would fail, whatever it is given.
        return len(positional) if not named else -1
    return max(required, arguments)
