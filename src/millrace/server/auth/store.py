"""The store of users, tokens, access keys and ownership: the keyed log `system/access`, followed.

Rule 1: a change made by this process is in force before its call returns; a change made by another
process as soon as its commit arrives. Nothing is polled: the store waits on the shard.
Rule 2: a user whose record cannot be read is unknown.
Rule 3: each administrative operation and its audit record are one transaction.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from millrace import limits
from millrace.client.cursor import Cursor
from millrace.client.millrace import Millrace, engine_of
from millrace.client.queue import Queue
from millrace.client.transaction import Later
from millrace.core import validate
from millrace.errors import (
    Closed,
    Denied,
    Exhausted,
    Exists,
    Fatal,
    Invalid,
    NotFound,
    Refused,
    Retry,
    TooLarge,
)
from millrace.server import clock
from millrace.server.auth import records
from millrace.server.auth.access import (
    SYSTEM,
    TOKEN_BYTES,
    AccessKey,
    Principal,
    Quota,
    Token,
    User,
    Verb,
    digest_of,
    is_account,
    make_token,
)
from millrace.server.auth.audit import AUDIT, Actor, Audit, headers_for
from millrace.server.auth.index import PrincipalIndex
from millrace.server.auth.records import AccessRecord, CreationRecord, Kind, UserRights
from millrace.server.auth.replay import AccessReplay
from millrace.server.auth.secret_file import new_key_id, secret_of

_logger = logging.getLogger("millrace.server")

ACCESS = "access"
"""The queue in the space `system`."""

RESERVED = ("-", "anonymous", "local", "settings")
"""Names under which the server itself acts."""


class UserStore:
    """Holds the known users with their secrets, and changes them durably."""

    def __init__(
        self,
        millrace: Millrace,
        queue: Queue,
        audit: Audit,
        secret: bytes | None,
        now_ms: Callable[[], int],
    ) -> None:
        self._millrace = millrace
        self._queue = queue
        self._secret = secret
        self.now_ms = now_ms
        self._ledger = AccessReplay()
        self._acts = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.audit = audit

    @classmethod
    async def open(
        cls,
        millrace: Millrace,
        *,
        follower: str | None = "server",
        secret: bytes | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> UserStore:
        """Read all records, and follow the log until the store is closed.

        `follower` names the cursor of this process and is the same after a restart; None reads once
        and does not follow. `secret` is the master secret of access keys
        (`secret_file.key_secret`).

        Raises:
            Invalid: the queue `system/access` exists and is not a keyed log.
        """
        read_clock = now_ms or clock.now_ms
        audit = await Audit.open(millrace, read_clock)
        queue = await _find(millrace)
        engine_of(millrace).maintenance.keep_room(queue.shards.ids)
        book = cls(millrace, queue, audit, secret, read_clock)
        if follower is None:
            await book._read()
        else:
            cursor = await book._begin(follower)
            book._task = asyncio.get_running_loop().create_task(book._follow(follower, cursor))
        return book

    async def close(self) -> None:
        """Stop following the log; without effect the second time."""
        await self.audit.close()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    @property
    def roll(self) -> PrincipalIndex:
        """Index of all users that are known now."""
        return self._ledger.roll

    @property
    def unread(self) -> dict[str, str]:
        """Records that could not be decoded, with the reason, by key."""
        return dict(self._ledger.unread)

    # --- Users --------------------------------------------------------------------------------

    async def add_user(self, user: User, by: Actor, *, token: Token | None = None) -> None:
        """Add a user; with `token`, also a token that was made elsewhere, in the same transaction.

        Raises:
            Exists: there is a user of this name.
            Invalid, TooLarge: the name is invalid, or there are too many users or rules.
        """
        async with self._acts:
            if self.roll.user(user.name) is not None:
                raise Exists(f"there is a user {user.name!r} already", field="user")
            _at_most(len(self.roll.users) + 1, limits.USERS_MAX, "users")
            user = msgspec.structs.replace(user, id=secrets.token_hex(8))
            changes: dict[str, AccessRecord | None] = {}
            if token is not None:
                own = msgspec.structs.replace(token, of=user.id)
                changes[records.token_key(token.digest)] = own
            changes[records.user_key(user.name)] = user
            await self._put_user(user, by, "user.add", changes)

    async def set_user(self, user: User, by: Actor) -> None:
        """Replace the rules and the quota of a user; requests that begin later are judged by them.

        A user whom another process removes at the same time stays removed.

        Raises:
            NotFound: there is no user of this name.
        """
        async with self._acts:
            id = self._known(user.name).id
            key = records.rights_key(id) if id else records.user_key(user.name)
            known = UserRights(user.rules, user.quota) if id else user
            await self._put_user(user, by, "user.set", {key: known})

    async def _put_user(
        self, user: User, by: Actor, act: str, changes: dict[str, AccessRecord | None]
    ) -> None:
        if validate.name(user.name, "user") in RESERVED:
            raise Invalid(f"{user.name!r} is a name of the server's own", field="user")
        _at_most(len(user.rules), limits.RULES_MAX, "rules")
        detail = "; ".join(map(str, user.rules))
        await self._commit(changes, by, act, user.name, detail)

    async def remove_user(self, name: str, by: Actor) -> None:
        """Remove a user with all their tokens and keys.

        Raises:
            NotFound: there is no user of this name.
        """
        async with self._acts:
            user = self._known(name)
            tokens = [records.token_key(one.digest) for one in self.roll.tokens(name)]
            tokens += [records.access_key(one.id) for one in self.roll.access_keys(name)]
            # Includes rights of users that were removed while another process changed their rights.
            rights = self._ledger.rights_without(user)[-limits.USER_SECRETS_MAX :]
            keys = [records.user_key(name), *tokens, *rights]
            detail = f"{len(tokens)} tokens and keys"
            await self._commit(dict.fromkeys(keys), by, "user.remove", name, detail)

    def _known(self, name: str) -> User:
        found = self.roll.user(name)
        if found is None:
            raise NotFound(f"there is no user {name[:100]!r}", field="user")
        return found

    # --- Tokens and keys ----------------------------------------------------------------------

    async def new_token(
        self, user: str, name: str, by: Actor, *, seconds: float | None = None
    ) -> tuple[Token, str]:
        """Create a token and return it with its text, which cannot be read again later.

        `seconds` is its lifetime; None: until it is revoked.

        Raises:
            NotFound: there is no such user.
            Invalid, TooLarge: the name or the lifetime is invalid, or the user has too many.
        """
        text = make_token(secrets.token_bytes(TOKEN_BYTES))
        digest = digest_of(text)
        return await self.put_digest(digest, user, name, by, seconds=seconds), text

    async def put_digest(
        self, digest: bytes, user: str, name: str, by: Actor, *, seconds: float | None = None
    ) -> Token:
        """Add a token that was made elsewhere, by its digest; otherwise as `new_token`."""
        async with self._acts:
            made_ms, expires_ms = self._times(user, name, seconds)
            token = Token(user, name, digest, made_ms, expires_ms, self._known(user).id)
            changes: dict[str, AccessRecord | None] = {records.token_key(token.digest): token}
            await self._commit(changes, by, "token.new", f"{user}/{name}", token.id)
        return token

    async def revoke_token(self, token: Token, by: Actor) -> None:
        """Revoke a token; without effect the second time."""
        async with self._acts:
            gone: dict[str, AccessRecord | None] = {records.token_key(token.digest): None}
            target = f"{token.user}/{token.name}"
            await self._commit(gone, by, "token.revoke", target, token.id)

    async def new_key(
        self,
        user: str,
        name: str,
        by: Actor,
        *,
        seconds: float | None = None,
        account: str = "",
    ) -> tuple[AccessKey, str]:
        """Create an access key and return it with its secret; otherwise as `new_token`."""
        async with self._acts:
            made_ms, expires_ms = self._times(user, name, seconds)
            key_id = new_key_id(secrets.token_bytes(10))
            if account and not is_account(account):
                raise Invalid(f"account is {account[:40]!r}, not twelve digits", field="account")
            of = self._known(user).id
            key = AccessKey(key_id, user, name, made_ms, expires_ms, of, account)
            secret = self.secret_of(key.id)
            changes: dict[str, AccessRecord | None] = {records.access_key(key.id): key}
            await self._commit(changes, by, "key.new", f"{user}/{name}", key.id)
        return key, secret

    async def revoke_key(self, key: AccessKey, by: Actor) -> None:
        """Revoke an access key; without effect the second time."""
        async with self._acts:
            gone: dict[str, AccessRecord | None] = {records.access_key(key.id): None}
            await self._commit(gone, by, "key.revoke", f"{key.user}/{key.name}", key.id)

    def secret_of(self, key_id: str) -> str:
        """Return the secret of an access key, also for an unknown id: check the id afterwards.

        Raises:
            Invalid: the file with the master secret is missing.
        """
        if self._secret is None:
            raise Invalid("access keys need the file that key_file names", field="key_file")
        return secret_of(key_id, self._secret)

    def _times(self, user: str, name: str, seconds: float | None) -> tuple[int, int]:
        self._known(user)
        validate.name(name, "name")
        count = len(self.roll.tokens(user)) + len(self.roll.access_keys(user)) + 1
        _at_most(count, limits.USER_SECRETS_MAX, f"tokens and keys of {user}")
        _at_most(self._ledger.secrets + 1, limits.TOKENS_MAX, "tokens and keys")
        now_ms = self.now_ms()
        if seconds is None:
            return now_ms, 0
        return now_ms, now_ms + validate.millis(seconds, "expires", limits.TOKEN_MS_MAX)

    # --- Created objects ----------------------------------------------------------------------

    async def claim(self, principal: Principal, quota: Quota, kind: Kind, name: str) -> bool:
        """Count an object against the quota of the user before it is created.

        `quota` is the result of `Quotas.of` for the principal; `name` is space/queue,
        space/topic:topic, space/queue/cursor or space/topic/subscription. An object that is counted
        already, for any user, is not counted again. Only users have quotas of this kind. Returns
        True if it was counted now.

        Raises:
            Exhausted: the quota of the user is used up.
        """
        async with self._acts:
            if self.roll.user(principal.name) is None or self._ledger.maker(kind, name):
                return False
            counted = records.counted_as(kind, name)
            most: int = getattr(quota, counted)
            if most and self._ledger.made_by(principal.name, counted) >= most:
                raise Exhausted(
                    f"{principal.name} has {most} {counted}, as many as they may; delete one first",
                    field=counted,
                    limit=most,
                    after_ms=60_000,
                )
            made: dict[str, AccessRecord | None] = {
                records.made_key(kind, name): CreationRecord(principal.name)
            }
            await self._publish(made, Actor(principal.name, principal.where))
            return True

    async def unclaim(self, principal: Principal, kind: Kind, name: str) -> None:
        """Stop counting a deleted object and, for a queue or topic, all objects in it.

        If the change cannot be written, a warning is logged and the object counts on: the deletion
        itself has succeeded, and must not be reported as failed. Creating and deleting the object
        again ends the count.
        """
        async with self._acts:
            keys = self._ledger.made_within(kind, name)
            if keys:
                try:
                    await self._publish(dict.fromkeys(keys), Actor(principal.name, principal.where))
                except (Refused, Retry) as error:
                    _logger.warning("%s is gone and counts on: %s", name, error)

    @property
    def made(self) -> list[tuple[Kind, str]]:
        """Kind and name of all counted objects."""
        return self._ledger.made

    async def forget_made(self, places: Iterable[tuple[Kind, str]]) -> None:
        """Stop counting objects that do not exist."""
        async with self._acts:
            keys = [records.made_key(kind, name) for kind, name in places]
            for at in range(0, len(keys), limits.BOOK_FORGET_MANY):
                gone = keys[at : at + limits.BOOK_FORGET_MANY]
                await self._publish(dict.fromkeys(gone), Actor("settings"))

    # --- The log ------------------------------------------------------------------------------

    async def _commit(
        self,
        changes: dict[str, AccessRecord | None],
        by: Actor,
        act: str,
        target: str,
        detail: str,
    ) -> None:
        await self._publish(changes, by, self.audit.message(by, act, target, detail=detail))

    async def _publish(
        self, changes: dict[str, AccessRecord | None], by: Actor, note: bytes | None = None
    ) -> None:
        """Write changes, and their audit record if given; they are in force when this returns."""
        headers = headers_for(by)
        async with self._millrace.transaction(space=SYSTEM) as t:
            seqs: dict[str, Later[int | None]] = {}
            for key, known in changes.items():
                body = None if known is None else records.encode(known)
                seqs[key] = t.publish(ACCESS, body, key=key, headers=headers)
            if note is not None:
                t.publish(AUDIT, note, headers=headers)
        for key, known in changes.items():
            seq = seqs[key].value
            if seq is None:
                # An earlier attempt has committed it, and its seq is unknown.
                await self._read()
                return
            self._ledger.put(key, seq, known)

    async def _read(self) -> None:
        """Read all records, and drop what they do not contain."""
        async with self._queue.snapshot() as snapshot:
            rows = [(row.key, row.seq, row.body) async for row in snapshot.rows()]
            boundary = snapshot.boundary
        self._ledger.replace(_texts(rows), boundary)

    async def _begin(self, follower: str) -> Cursor:
        """Read all records, and return a cursor for later ones."""
        cursor = await self._queue.cursor(follower, start="end")
        await cursor.reset("end")
        await self._read()
        return cursor

    async def _follow(self, follower: str, cursor: Cursor) -> None:
        while True:
            try:
                async for snapshot in cursor:
                    async for row in snapshot.rows():
                        self._ledger.read(_text(row.key), row.seq, row.body)
                    self._ledger.forget_gone(snapshot.boundary)
                    await snapshot.commit()
            except (Closed, Fatal):
                return
            except Retry as error:
                await asyncio.sleep(min(error.after_ms, limits.BOOK_PAUSE_MS_MAX) / 1000)
            except Refused:
                # The queue or the cursor was deleted, or the cursor is too far behind.
                cursor = await self._begin_again(follower)

    async def _begin_again(self, follower: str) -> Cursor:
        while True:
            await asyncio.sleep(limits.BOOK_PAUSE_MS_MAX / 1000)
            try:
                queue = await _find(self._millrace)
                if queue.shards.ids != self._queue.shards.ids:
                    # Another queue of the same name: its seqs are unrelated to the old ones.
                    self._queue = queue
                    self._ledger = AccessReplay()
                return await self._begin(follower)
            except Closed:
                raise
            except (Retry, Refused):
                continue


async def _find(millrace: Millrace) -> Queue:
    try:
        queue = await millrace.find(ACCESS, space=SYSTEM)
    except NotFound:
        return await millrace.queue(
            ACCESS,
            space=SYSTEM,
            keyed=True,
            retention="log",
            keep_deletes=limits.BOOK_KEEP_DELETES_SECONDS,
        )
    spec = await queue.spec()
    if not spec.keyed or spec.retention != "log":
        raise Invalid(
            f"the queue {SYSTEM}/{ACCESS} is no keyed log: the space {SYSTEM!r} belongs to the "
            "server; move what is in it elsewhere, and delete it",
            field="queue",
        )
    return queue


def _texts(
    rows: Iterable[tuple[bytes | None, int, bytes | None]],
) -> list[tuple[str, int, bytes | None]]:
    return [(_text(key), seq, body) for key, seq, body in rows]


def _text(key: bytes | None) -> str:
    return (key or b"").decode("utf-8", "backslashreplace")


def _at_most(count: int, most: int, what: str) -> None:
    if count > most:
        raise TooLarge(f"there may be {most} {what}, not {count}", field=what, limit=most)


# --- Current rights of the user who started a long-running job -----------------------------------
#
# Rule 1: a job has the rights that both the request that started it and the user's current rules
# allow. A removed user has no rights.
# Rule 2: the user's name decides, not the token or key of the request: a job outlives a token that
# expires. A principal without a user, such as `anonymous`, keeps the rights of the request.


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
