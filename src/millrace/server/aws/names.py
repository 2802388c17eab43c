"""Names of AWS: accounts, regions, ARNs, addresses of queues, and the spaces that they stand for.

An account of a region is a space. The one that the server's settings name is the space `default`,
so that whoever speaks another protocol finds the same queues; every other is `ACCOUNT.REGION`.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

DEFAULT_SPACE = "default"
_ACCOUNT = re.compile(r"[0-9]{12}")
_BARE = re.compile(r"[A-Za-z0-9_.-]+")
_SPACE = re.compile(r"([0-9]{12})\.([a-z0-9-]{1,64})")


class Home(NamedTuple):
    """An account of a region."""

    account: str
    region: str


def is_account(text: str) -> bool:
    """Whether it is the number of an account."""
    return _ACCOUNT.fullmatch(text) is not None


def space_of(home: Home, usual: Home) -> str:
    """The space of an account's region, where `usual` is that of the settings."""
    return DEFAULT_SPACE if home == usual else f"{home.account}.{home.region}"


def home_of(space: str, usual: Home) -> Home | None:
    """The account and region of a space; None: it is of none."""
    if space == DEFAULT_SPACE:
        return usual
    found = _SPACE.fullmatch(space)
    return None if found is None else Home(found[1], found[2])


def arn_of(service: str, home: Home, name: str) -> str:
    """The ARN of a queue or a topic."""
    return f"arn:aws:{service}:{home.region}:{home.account}:{name}"


class Arn(NamedTuple):
    """What an ARN names."""

    service: str
    home: Home
    name: str


def read_arn(text: str) -> Arn | None:
    """What an ARN names; None: it is none."""
    parts = text.split(":", 5)
    if len(parts) != 6 or parts[0] != "arn" or not parts[1].startswith("aws"):
        return None
    _, _, service, region, account, name = parts
    if not (service and region and is_account(account) and name):
        return None
    return Arn(service, Home(account, region), name)


def read_url(url: str) -> tuple[str, str, str] | None:
    """Account, region (each empty where it does not tell) and name of a queue's address, whatever
    its host; None: it is none.

    The path is /ACCOUNT/NAME, or as some emulators write it, /queue/REGION/ACCOUNT/NAME. The bare
    name of a queue is an address, too.
    """
    if len(url) > 1024:
        return None
    if _BARE.fullmatch(url) is not None:
        return "", "", url
    try:
        path = urlsplit(url).path
    except ValueError:
        return None
    parts = [unquote(part) for part in path.split("/") if part]
    if len(parts) == 4 and parts[0] == "queue" and is_account(parts[2]):
        return parts[2], parts[1], parts[3]
    if len(parts) == 2 and is_account(parts[0]):
        return parts[0], "", parts[1]
    return None
