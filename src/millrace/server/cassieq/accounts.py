"""CassieQ's accounts: users of the server with a space of the same name, and their keys.

Rule 1: an account is a user with the rule that allows everything in its space except `admin`. Users
without that rule are not accounts: they are neither listed nor deleted here.
Rule 2: an account under deletion loses all rights before the first of its queues is deleted. If the
deletion is interrupted, repeating it completes it.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial

import msgspec

from millrace.core import validate
from millrace.decoding import json_decoder
from millrace.errors import Denied, Exists, Invalid, NotFound
from millrace.server.auth.access import (
    SYSTEM,
    Rule,
    User,
    parse_rule,
)
from millrace.server.auth.audit import Act, queue_made, topic_made
from millrace.server.auth.store import UserStore
from millrace.server.cassieq.route_table import (
    ACCOUNT,
    ACCOUNTS,
    KEY,
    KEYS,
    PERMISSIONS,
    ROUTES,
)
from millrace.server.cassieq.route_table import LEVELS as LEVELS_PATH
from millrace.server.cassieq.schemas import (
    AccountOut,
    KeyIn,
    LevelOut,
    NoQuery,
    PermissionIn,
    PermissionOut,
    query_of,
)
from millrace.server.cassieq.signature import (
    LEVELS,
    SignedRights,
    letters_of,
    read_time,
    write_rights,
)
from millrace.server.http.response import Response
from millrace.server.web.request_audit import actor_of
from millrace.server.web.route import (
    RequestContext,
    decode,
    denied,
    encode,
)

KEY_NAMES = ("primary", "secondary")
"""The keys that a new account gets."""

_name_in = json_decoder(str)
_key_in = json_decoder(KeyIn)
_permission_in = json_decoder(PermissionIn)


def account_rule(name: str) -> Rule:
    """Return the rule that makes a user an account: every right in its own space except `admin`."""
    return parse_rule(f"allow publish,work,read,watch,manage {name}/*")


def _ended_rule(name: str) -> Rule:
    return parse_rule(f"deny * {name}/*")


def _book(ask: RequestContext) -> UserStore:
    book = ask.server.book
    if book is None:
        raise Denied("there are no users here, and so no accounts", field="account")
    return book


def _find(book: UserStore, name: str) -> User:
    """Return the user of an account.

    Raises:
        NotFound: the account does not exist.
    """
    user = book.roll.user(name)
    if user is None or account_rule(name) not in user.rules:
        raise NotFound(f"there is no account {name[:100]!r}", field="account")
    return user


def _out(book: UserStore, name: str) -> AccountOut:
    now_ms = book.now_ms()
    keys = [key for key in book.roll.access_keys(name) if book.roll.key(key.id, now_ms)]
    found = {key.name: book.secret_of(key.id) for key in keys}
    return AccountOut(account_name=name, keys=found)


@ROUTES.raw("POST", ACCOUNTS, "admin", gives=AccountOut, status=201)
async def create_account(ask: RequestContext) -> Response:
    """Create an account with two keys; the body is its name as a JSON string."""
    query_of(ask, NoQuery)
    name = validate.name(_name(ask), "account")
    if name == SYSTEM:
        raise Invalid(f"{SYSTEM!r} is the server's own space", field="account")
    book, by = _book(ask), actor_of(ask.principal)
    await book.add_user(User(name, (account_rule(name),)), by)
    for key in KEY_NAMES:
        await book.new_key(name, key, by)
    return Response(201, encode(_out(book, name)))


def _name(ask: RequestContext) -> str:
    try:
        return decode(_name_in, ask.request.body)
    except Invalid as error:
        text = """the body is the name of the account as JSON, with its quotes: "acme\""""
        raise Invalid(text, field="body") from error


@ROUTES.raw("GET", ACCOUNTS, "admin", gives=list[AccountOut])
async def list_accounts(ask: RequestContext) -> Response:
    """List all accounts with their keys."""
    query_of(ask, NoQuery)
    book = _book(ask)
    users = book.roll.users
    found = [name for name, user in users.items() if _is_account(user)]
    return Response(200, encode([_out(book, name) for name in found]))


def _is_account(user: User) -> bool:
    return account_rule(user.name) in user.rules


@ROUTES.raw("GET", ACCOUNT, "admin", gives=AccountOut)
async def get_account(ask: RequestContext) -> Response:
    """Return an account with its keys."""
    query_of(ask, NoQuery)
    book, name = _book(ask), ask.params["space"]
    _find(book, name)
    return Response(200, encode(_out(book, name)))


@ROUTES.raw("DELETE", ACCOUNT, "admin", status=204)
async def delete_account(ask: RequestContext) -> Response:
    """Delete an account with all of its queues and topics."""
    query_of(ask, NoQuery)
    book, name, by = _book(ask), ask.params["space"], actor_of(ask.principal)
    user = _find(book, name)
    ended = msgspec.structs.replace(user, rules=(account_rule(name), _ended_rule(name)))
    await book.set_user(ended, by)
    await _end_all(ask, name)
    await book.remove_user(name, by)
    # Another process may have learned late that the account lost its rights, and may have made
    # queues since the first pass.
    await _end_all(ask, name)
    return Response(204)


async def _end_all(ask: RequestContext, name: str) -> None:
    """Delete every topic and queue of a space."""
    millrace = ask.desk.millrace
    for topic in await millrace.topics(space=name):
        act = Act("delete_topic", f"{name}/{topic}", ends=topic_made(name, topic))
        await ask.server.act(ask, act, partial(millrace.delete_topic, topic, space=name))
    for queue in await millrace.queues(space=name):
        act = Act("delete_queue", f"{name}/{queue}", ends=queue_made(name, queue))
        await ask.server.act(ask, act, partial(millrace.delete_queue, queue, space=name))


@ROUTES.raw("POST", KEYS, "admin", takes=KeyIn, gives=str, status=201)
async def add_account_key(ask: RequestContext) -> Response:
    """Create another key for an account; the response is the key as a JSON string."""
    query_of(ask, NoQuery)
    book, name = _book(ask), ask.params["space"]
    _find(book, name)
    key_name = decode(_key_in, ask.request.body).key_name
    if any(key.name == key_name for key in book.roll.access_keys(name)):
        text = f"{name} has a key {key_name[:100]!r} already; delete it first"
        raise Exists(text, field="keyName")
    _, secret = await book.new_key(name, key_name, actor_of(ask.principal))
    return Response(201, encode(secret))


@ROUTES.raw("DELETE", KEY, "admin", status=204)
async def delete_account_key(ask: RequestContext) -> Response:
    """Delete a key of an account; addresses that were signed with it become invalid."""
    query_of(ask, NoQuery)
    book, name, key_name = _book(ask), ask.params["space"], ask.params["key"]
    _find(book, name)
    found = [key for key in book.roll.access_keys(name) if key.name == key_name]
    if not found:
        raise NotFound(f"{name} has no key {key_name[:100]!r}", field="key")
    for key in found:
        await book.revoke_key(key, actor_of(ask.principal))
    return Response(204)


@ROUTES.raw("GET", LEVELS_PATH, "known", gives=list[LevelOut])
async def list_authorization_levels(ask: RequestContext) -> Response:
    """List the authorization levels that an address can be signed for."""
    query_of(ask, NoQuery)
    found = [LevelOut(level=level.name, short_form=level.letter) for level in LEVELS]
    return Response(200, encode(found))


@ROUTES.raw("POST", PERMISSIONS, "known", takes=PermissionIn, gives=PermissionOut, status=201)
async def create_signed_query(ask: RequestContext) -> Response:
    """Sign rights and return them as the query string of an address."""
    query_of(ask, NoQuery)
    params = decode(_permission_in, ask.request.body)
    name = params.account_name
    if not ask.principal.may("admin", name, "*"):
        ask.server.denied(ask.principal, ask.route.name, name)
        raise denied(ask.principal, "admin", name, "*")
    book = _book(ask)
    _find(book, name)
    keys = _out(book, name).keys
    if params.key_name not in keys:
        raise NotFound(f"{name} has no key {params.key_name[:100]!r}", field="keyName")
    rights = _rights(params)
    query = write_rights(name, rights, keys[params.key_name])
    return Response(201, encode(PermissionOut(query_param=query)))


def _rights(params: PermissionIn) -> SignedRights:
    short = {level.name: level.letter for level in LEVELS}
    letters = letters_of("".join(short.get(level, level) for level in params.levels))
    if not letters:
        known = ", ".join(f"{letter} ({name})" for name, letter in short.items())
        raise Invalid(f"levels are {params.levels!r}; there are {known}", field="levels")
    start, end = _time(params.start_time, "startTime"), _time(params.end_time, "endTime")
    queue = None if params.queue_name is None else validate.name(params.queue_name, "queueName")
    return SignedRights(letters, start, end, queue)


def _time(text: str | None, field: str) -> datetime | None:
    if text is None:
        return None
    found = read_time(text)
    if found is None:
        raise Invalid(f"{field} is {text[:40]!r}; write 2026-01-31T12:00:00Z", field=field)
    return found
