"""Current rights of the user who started a long-running job.

Rule 1: a job has the rights that both the request that started it and the user's current rules
allow. A removed user has no rights.
Rule 2: the user's name decides, not the token or key of the request: a job outlives a token that
expires. A principal without a user, such as `anonymous`, keeps the rights of the request.
"""

from __future__ import annotations

from millrace.errors import Denied
from millrace.server.auth.access import Principal, Verb
from millrace.server.auth.store import UserStore


class CurrentRights:
    """Rights of a job's user while the job runs."""

    def __init__(self, principal: Principal, book: UserStore | None) -> None:
        self._began = principal
        is_user = book is not None and book.roll.user(principal.name) is not None
        self._book = book if is_user else None

    def may(self, verb: Verb, space: str, name: str) -> bool:
        """Return whether the job has this right now."""
        if not self._began.may(verb, space, name):
            return False
        if self._book is None:
            return True
        now = self._book.roll.principal(self._began.name)
        return now is not None and now.may(verb, space, name)

    def check(self, verb: Verb, space: str, name: str) -> None:
        """Check that the job has this right now.

        Raises:
            Denied: it has not, or its user was removed.
        """
        if not self.may(verb, space, name):
            raise Denied(
                f"{self._began.name!r} may not {verb} {space}/{name} any more; what was done is "
                "done, and the rest is as it was",
                field="verb",
            )
