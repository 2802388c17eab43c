"""Replay of the log `system/access` into the current users, secrets and ownership.

Rule: of each key the message with the highest seq counts, whatever the order of arrival: a process
knows its own writes before it reads them. A user whose rights cannot be decoded is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from millrace.server.auth import records
from millrace.server.auth.access import AccessKey, Token, User
from millrace.server.auth.index import PrincipalIndex
from millrace.server.auth.records import (
    AccessRecord,
    Counted,
    CreationRecord,
    Kind,
    UndecodableRecord,
    UserRights,
)


class AccessReplay:
    """The users, secrets and created objects that result from the log."""

    def __init__(self) -> None:
        self.roll = PrincipalIndex()
        self.unread: dict[str, str] = {}
        self._seqs: dict[str, int] = {}
        """Seq of the newest message of each key."""
        self._gone: dict[str, int] = {}
        """Seqs of deletions, until all older messages were read."""
        self._users: dict[str, User] = {}
        """By name, as they were added."""
        self._names: dict[str, str] = {}
        """User names by user id."""
        self._rights: dict[str, UserRights] = {}
        """By user id; some of these users may be gone."""
        self._made: dict[str, str] = {}
        """Creators by the keys of messages."""
        self._counts: Counter[tuple[str, Counted]] = Counter()
        """Number of objects of each kind that each user has created."""
        self._within: dict[str, set[str]] = {}
        """Keys of the objects in each queue and topic."""

    @property
    def secrets(self) -> int:
        """Number of tokens and keys."""
        return self.roll.secrets

    def put(self, key: str, seq: int, known: AccessRecord | None) -> None:
        """Apply a message; None deletes the value of the key."""
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
        """Decode and apply a message."""
        why = ""
        known: AccessRecord | None = None
        if body is not None:
            try:
                known = records.decode(key, body)
            except UndecodableRecord as error:
                why = str(error)
        self.put(key, seq, known)
        if why and self._seqs[key] == seq:
            self.unread[key] = why
            self._know(key, None)

    def replace(self, rows: Iterable[tuple[str, int, bytes | None]], boundary: int) -> None:
        """Apply the complete content of the log up to a boundary: older keys that it lacks are
        gone."""
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
        """Forget deletions up to the boundary: all messages before it were read."""
        for key in [key for key, seq in self._gone.items() if seq <= boundary]:
            del self._gone[key]
            del self._seqs[key]

    def _know(self, key: str, known: AccessRecord | None) -> None:
        kind, _, rest = key.partition("/")
        if kind == "user":
            self._know_user(rest, known if isinstance(known, User) else None)
        elif kind == "rights":
            if isinstance(known, UserRights):
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
            self._know_made(key, known.user if isinstance(known, CreationRecord) else None)

    def _know_made(self, key: str, user: str | None) -> None:
        place = records.read_made_key(key)
        if place is None:
            return
        counted, parent = records.counted_as(*place), records.parent_key(*place)
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
        """Update the index with a user's record and rights."""
        user = self._users.get(name)
        if user is not None and user.id:
            rights = self._rights.get(user.id)
            if records.rights_key(user.id) in self.unread:
                user = None
            elif rights is not None:
                user = User(name, rights.rules, rights.quota, user.id)
        self.roll.put_user(name, user)

    def rights_without(self, user: User) -> list[str]:
        """Return the keys of rights that have no user once this one is gone."""
        left = self._names.keys() - {user.id}
        return [records.rights_key(id) for id in self._rights if id not in left]

    # --- Created objects -----------------------------------------------------------------------

    def maker(self, kind: Kind, name: str) -> str | None:
        """Return the recorded creator of an object, if any."""
        return self._made.get(records.made_key(kind, name))

    def made_by(self, user: str, counted: Counted) -> int:
        """Return the number of objects of a user that count against a quota."""
        return self._counts[user, counted]

    def made_within(self, kind: Kind, name: str) -> list[str]:
        """Return the keys of the creation records of an object and of all objects in it."""
        own = records.made_key(kind, name)
        found = [own] if own in self._made else []
        return found + sorted(self._within.get(own, ()))

    @property
    def made(self) -> list[tuple[Kind, str]]:
        """Kind and name of all objects with a recorded creator."""
        return [place for key in self._made if (place := records.read_made_key(key)) is not None]


def _digest(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
