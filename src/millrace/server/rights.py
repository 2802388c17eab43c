"""What somebody may do now, of what they could do when they began something that goes on.

Rule 1: a job may do what both the request that began it and its user's rules of now allow. A user
who was removed may do nothing any more.
Rule 2: it is judged by the user's name, and not by the token or key of the request: a job outlives
a token that expires. Whoever has no user, such as `anonymous`, keeps what they had.
"""

from __future__ import annotations

from millrace.errors import Denied
from millrace.server.access import Principal, Verb
from millrace.server.book import Book


class Rights:
    """What whoever began a job may do as long as it goes on."""

    def __init__(self, principal: Principal, book: Book | None) -> None:
        self._began = principal
        is_user = book is not None and book.roll.user(principal.name) is not None
        self._book = book if is_user else None

    def may(self, verb: Verb, space: str, name: str) -> bool:
        """Whether they may do this now."""
        if not self._began.may(verb, space, name):
            return False
        if self._book is None:
            return True
        now = self._book.roll.principal(self._began.name)
        return now is not None and now.may(verb, space, name)

    def check(self, verb: Verb, space: str, name: str) -> None:
        """See that they may do this now.

        Raises:
            Denied: they may not, or are not known any more.
        """
        if not self.may(verb, space, name):
            raise Denied(
                f"{self._began.name!r} may not {verb} {space}/{name} any more; what was done is "
                "done, and the rest is as it was",
                field="verb",
            )
