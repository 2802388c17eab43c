"""CassieQ's accounts: users of the server that have a space of their name, and the keys of them.

Rule 1: an account is a user with the rule that lets it do everything in its space but care for
itself. Users without that rule are no accounts, and are neither shown nor ended here.
Rule 2: an account that is being ended may do nothing any more before the first of its queues goes;
where that is cut off, ending it again goes on.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial

import msgspec

from millrace.core import check
from millrace.decoding import json_decoder
from millrace.errors import Denied, Exists, Invalid, NotFound
from millrace.server.access import SYSTEM, Rule, User, parse_rule
from millrace.server.book import Book
from millrace.server.cassieq.bodies import (
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
    Rights,
    letters_of,
    read_time,
    write_rights,
)
from millrace.server.cassieq.table import ACCOUNT, ACCOUNTS, KEY, KEYS, PERMISSIONS, ROUTES
from millrace.server.cassieq.table import LEVELS as LEVELS_PATH
from millrace.server.http.response import Response
from millrace.server.rest.act import Act, queue_made, topic_made
from millrace.server.rest.route import Ask, decode, denied, encode
from millrace.server.rest.steward import actor_of

KEY_NAMES = ("primary", "secondary")
"""The keys that an account has when it is made."""

_name_in = json_decoder(str)
_key_in = json_decoder(KeyIn)
_permission_in = json_decoder(PermissionIn)


def account_rule(name: str) -> Rule:
    """What an account may do."""
    return parse_rule(f"allow publish,work,read,watch,manage {name}/*")


def _ended_rule(name: str) -> Rule:
    return parse_rule(f"deny * {name}/*")


def _book(ask: Ask) -> Book:
    book = ask.server.book
    if book is None:
        raise Denied("there are no users here, and so no accounts", field="account")
    return book


def _find(book: Book, name: str) -> User:
    """The account of a name.

    Raises:
        NotFound: there is none.
    """
    user = book.roll.user(name)
    if user is None or account_rule(name) not in user.rules:
        raise NotFound(f"there is no account {name[:100]!r}", field="account")
    return user


def _out(book: Book, name: str) -> AccountOut:
    now_ms = book.now_ms()
    keys = [key for key in book.roll.access_keys(name) if book.roll.key(key.id, now_ms)]
    found = {key.name: book.secret_of(key.id) for key in keys}
    return AccountOut(account_name=name, keys=found)


@ROUTES.raw("POST", ACCOUNTS, "admin", gives=AccountOut, status=201)
async def create_account(ask: Ask) -> Response:
    """Make an account with two keys; the body is its name, as JSON."""
    query_of(ask, NoQuery)
    name = check.name(_name(ask), "account")
    if name == SYSTEM:
        raise Invalid(f"{SYSTEM!r} is the server's own space", field="account")
    book, by = _book(ask), actor_of(ask.principal)
    await book.add_user(User(name, (account_rule(name),)), by)
    for key in KEY_NAMES:
        await book.new_key(name, key, by)
    return Response(201, encode(_out(book, name)))


def _name(ask: Ask) -> str:
    try:
        return decode(_name_in, ask.request.body)
    except Invalid as error:
        text = """the body is the name of the account as JSON, with its quotes: "acme\""""
        raise Invalid(text, field="body") from error


@ROUTES.raw("GET", ACCOUNTS, "admin", gives=list[AccountOut])
async def list_accounts(ask: Ask) -> Response:
    """Every account, and its keys."""
    query_of(ask, NoQuery)
    book = _book(ask)
    users = book.roll.users
    found = [name for name, user in users.items() if _is_account(user)]
    return Response(200, encode([_out(book, name) for name in found]))


def _is_account(user: User) -> bool:
    return account_rule(user.name) in user.rules


@ROUTES.raw("GET", ACCOUNT, "admin", gives=AccountOut)
async def get_account(ask: Ask) -> Response:
    """An account, and its keys."""
    query_of(ask, NoQuery)
    book, name = _book(ask), ask.params["space"]
    _find(book, name)
    return Response(200, encode(_out(book, name)))


@ROUTES.raw("DELETE", ACCOUNT, "admin", status=204)
async def delete_account(ask: Ask) -> Response:
    """End an account with all of its queues and topics."""
    query_of(ask, NoQuery)
    book, name, by = _book(ask), ask.params["space"], actor_of(ask.principal)
    user = _find(book, name)
    ended = msgspec.structs.replace(user, rules=(account_rule(name), _ended_rule(name)))
    await book.set_user(ended, by)
    await _end_all(ask, name)
    await book.remove_user(name, by)
    # Another process may have heard late that the account may do nothing any more.
    await _end_all(ask, name)
    return Response(204)


async def _end_all(ask: Ask, name: str) -> None:
    """End every topic and queue of a space."""
    millrace = ask.desk.millrace
    for topic in await millrace.topics(space=name):
        act = Act("delete_topic", f"{name}/{topic}", ends=topic_made(name, topic))
        await ask.server.act(ask, act, partial(millrace.delete_topic, topic, space=name))
    for queue in await millrace.queues(space=name):
        act = Act("delete_queue", f"{name}/{queue}", ends=queue_made(name, queue))
        await ask.server.act(ask, act, partial(millrace.delete_queue, queue, space=name))


@ROUTES.raw("POST", KEYS, "admin", takes=KeyIn, gives=str, status=201)
async def add_account_key(ask: Ask) -> Response:
    """Make another key of an account; the answer is the key, as JSON."""
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
async def delete_account_key(ask: Ask) -> Response:
    """End a key of an account, and all addresses that were signed with it."""
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
async def list_authorization_levels(ask: Ask) -> Response:
    """The rights that addresses can be signed for."""
    query_of(ask, NoQuery)
    found = [LevelOut(level=level.name, short_form=level.letter) for level in LEVELS]
    return Response(200, encode(found))


@ROUTES.raw("POST", PERMISSIONS, "known", takes=PermissionIn, gives=PermissionOut, status=201)
async def create_signed_query(ask: Ask) -> Response:
    """Sign rights, as they go behind the question mark of an address."""
    query_of(ask, NoQuery)
    told = decode(_permission_in, ask.request.body)
    name = told.account_name
    if not ask.principal.may("admin", name, "*"):
        ask.server.denied(ask.principal, ask.route.name, name)
        raise denied(ask.principal, "admin", name, "*")
    book = _book(ask)
    _find(book, name)
    keys = _out(book, name).keys
    if told.key_name not in keys:
        raise NotFound(f"{name} has no key {told.key_name[:100]!r}", field="keyName")
    rights = _rights(told)
    query = write_rights(name, rights, keys[told.key_name])
    return Response(201, encode(PermissionOut(query_param=query)))


def _rights(told: PermissionIn) -> Rights:
    short = {level.name: level.letter for level in LEVELS}
    letters = letters_of("".join(short.get(level, level) for level in told.levels))
    if not letters:
        known = ", ".join(f"{letter} ({name})" for name, letter in short.items())
        raise Invalid(f"levels are {told.levels!r}; there are {known}", field="levels")
    start, end = _time(told.start_time, "startTime"), _time(told.end_time, "endTime")
    queue = None if told.queue_name is None else check.name(told.queue_name, "queueName")
    return Rights(letters, start, end, queue)


def _time(text: str | None, field: str) -> datetime | None:
    if text is None:
        return None
    found = read_time(text)
    if found is None:
        raise Invalid(f"{field} is {text[:40]!r}; write 2026-01-31T12:00:00Z", field=field)
    return found
