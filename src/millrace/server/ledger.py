"""What the messages of `system/access` add up to.

Rule: of each key the message with the highest seq counts, in whatever order they are heard of: what
this process has written itself, it knows before it reads it. Rights that cannot be read make their
user unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from millrace.server import record
from millrace.server.access import AccessKey, Token, User
from millrace.server.record import Counted, Kind, Known, Made, Rights, Unread
from millrace.server.roll import Roll


class Ledger:
    """Who is known, and who has made what."""

    def __init__(self) -> None:
        self.roll = Roll()
        self.unread: dict[str, str] = {}
        self._seqs: dict[str, int] = {}
        """Of each key the newest message that was heard of."""
        self._gone: dict[str, int] = {}
        """Of those the ones that delete; until all that is older was read."""
        self._users: dict[str, User] = {}
        """By their names, as they were made."""
        self._names: dict[str, str] = {}
        """By their ids."""
        self._rights: dict[str, Rights] = {}
        """By the ids of users, or of some who are gone."""
        self._made: dict[str, str] = {}
        """By the keys of messages, who has made it."""
        self._counts: Counter[tuple[str, Counted]] = Counter()
        """How many of a kind each user has made."""
        self._within: dict[str, set[str]] = {}
        """By the keys of queues and topics, the keys of what is in them."""

    @property
    def secrets(self) -> int:
        """How many tokens and keys there are."""
        return self.roll.secrets

    def put(self, key: str, seq: int, known: Known | None) -> None:
        """Take in a message; None deletes what is under the key."""
        if seq <= self._seqs.get(key, 0):
            return
        self._seqs[key] = seq
        self.unread.pop(key, None)
        if known is None:
            self._gone[key] = seq
        else:
            self._gone.pop(key, None)
        self._know(key, known)

    def read(self, key: str, seq: int, body: bytes | None) -> None:
        """Take in a message as it was read."""
        why = ""
        known: Known | None = None
        if body is not None:
            try:
                known = record.decode(key, body)
            except Unread as error:
                why = str(error)
        self.put(key, seq, known)
        if why and self._seqs[key] == seq:
            self.unread[key] = why
            self._know(key, None)

    def replace(self, rows: Iterable[tuple[str, int, bytes | None]], boundary: int) -> None:
        """Take in all that there is up to a boundary: what is older and not among it has gone."""
        found = list(rows)
        there = {key for key, _, _ in found}
        older = [key for key, seq in self._seqs.items() if seq <= boundary and key not in there]
        for key in older:
            del self._seqs[key]
            self._gone.pop(key, None)
            self.unread.pop(key, None)
            self._know(key, None)
        for key, seq, body in found:
            self.read(key, seq, body)
        self.forget_gone(boundary)

    def forget_gone(self, boundary: int) -> None:
        """All up to the boundary was read: nothing older can come any more."""
        for key in [key for key, seq in self._gone.items() if seq <= boundary]:
            del self._gone[key]
            del self._seqs[key]

    def _know(self, key: str, known: Known | None) -> None:
        kind, _, rest = key.partition("/")
        if kind == "user":
            self._know_user(rest, known if isinstance(known, User) else None)
        elif kind == "rights":
            if isinstance(known, Rights):
                self._rights[rest] = known
            else:
                self._rights.pop(rest, None)
            if rest in self._names:
                self._enroll(self._names[rest])
        elif kind == "token":
            digest = _digest(rest)
            self.roll.put_token(digest, known if isinstance(known, Token) else None)
        elif kind == "key":
            self.roll.put_key(rest, known if isinstance(known, AccessKey) else None)
        elif kind == "made":
            self._know_made(key, known.user if isinstance(known, Made) else None)

    def _know_made(self, key: str, user: str | None) -> None:
        place = record.read_made_key(key)
        if place is None:
            return
        counted, parent = record.counted_as(*place), record.parent_key(*place)
        before = self._made.pop(key, None)
        if before is not None:
            self._counts[before, counted] -= 1
            if not self._counts[before, counted]:
                del self._counts[before, counted]
        if user is not None:
            self._made[key] = user
            self._counts[user, counted] += 1
        if parent is None:
            return
        if user is not None:
            self._within.setdefault(parent, set()).add(key)
        elif parent in self._within:
            self._within[parent].discard(key)
            if not self._within[parent]:
                del self._within[parent]

    def _know_user(self, name: str, user: User | None) -> None:
        before = self._users.pop(name, None)
        if before is not None:
            self._names.pop(before.id, None)
        if user is not None:
            self._users[name] = user
            if user.id:
                self._names[user.id] = name
        self._enroll(name)

    def _enroll(self, name: str) -> None:
        """Have a user known as they are by all that was said of them."""
        user = self._users.get(name)
        if user is not None and user.id:
            rights = self._rights.get(user.id)
            if record.rights_key(user.id) in self.unread:
                user = None
            elif rights is not None:
                user = User(name, rights.rules, rights.quota, user.id)
        self.roll.put_user(name, user)

    def rights_without(self, user: User) -> list[str]:
        """The keys of rights that are nobody's when this user is gone."""
        left = self._names.keys() - {user.id}
        return [record.rights_key(id) for id in self._rights if id not in left]

    # --- What was made ------------------------------------------------------------------------

    def maker(self, kind: Kind, name: str) -> str | None:
        """Who has made it, as far as that was noted."""
        return self._made.get(record.made_key(kind, name))

    def made_by(self, user: str, counted: Counted) -> int:
        """How many a user has made, of those that count against a quota."""
        return self._counts[user, counted]

    def made_within(self, kind: Kind, name: str) -> list[str]:
        """The keys that say who has made it, and what is in it."""
        own = record.made_key(kind, name)
        found = [own] if own in self._made else []
        return found + sorted(self._within.get(own, ()))

    @property
    def made(self) -> list[tuple[Kind, str]]:
        """Kind and name of all that was made, as far as that was noted."""
        return [place for key in self._made if (place := record.read_made_key(key)) is not None]


def _digest(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
