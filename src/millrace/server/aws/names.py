"""AWS names and their spaces: accounts, regions, ARNs and queue URLs.

A space corresponds to an account in a region. The one in the server's settings is the space
`default`, so that clients of other protocols find the same queues; every other is `ACCOUNT.REGION`.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from millrace.server.auth.access import is_account

DEFAULT_SPACE = "default"
_BARE = re.compile(r"[A-Za-z0-9_.-]+")
_SPACE = re.compile(r"([0-9]{12})\.([a-z0-9-]{1,64})")


class AccountRegion(NamedTuple):
    """An account in a region."""

    account: str
    region: str


def space_of(home: AccountRegion, usual: AccountRegion) -> str:
    """Return the space of an account and region; `usual` is that of the settings."""
    return DEFAULT_SPACE if home == usual else f"{home.account}.{home.region}"


def home_of(space: str, usual: AccountRegion) -> AccountRegion | None:
    """Return the account and region of a space, or None if it has none."""
    if space == DEFAULT_SPACE:
        return usual
    found = _SPACE.fullmatch(space)
    return None if found is None else AccountRegion(found[1], found[2])


def arn_of(service: str, home: AccountRegion, name: str) -> str:
    """Return the ARN of a queue or topic."""
    return f"arn:aws:{service}:{home.region}:{home.account}:{name}"


class Arn(NamedTuple):
    """The parts of an ARN."""

    service: str
    home: AccountRegion
    name: str


def read_arn(text: str) -> Arn | None:
    """Parse an ARN; return None if it is invalid."""
    parts = text.split(":", 5)
    if len(parts) != 6 or parts[0] != "arn" or not parts[1].startswith("aws"):
        return None
    _, _, service, region, account, name = parts
    if not (service and region and is_account(account) and name):
        return None
    return Arn(service, AccountRegion(account, region), name)


def read_url(url: str) -> tuple[str, str, str] | None:
    """Return account, region (empty if absent) and name in a queue URL, or None if it is invalid.

    The host is ignored. The path is /ACCOUNT/NAME, or /queue/REGION/ACCOUNT/NAME as in some
    emulators. The bare name of a queue is valid too.
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
