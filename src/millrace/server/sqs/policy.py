"""The policy of a queue: as it was set, and the statements that AddPermission wrote since.

Each of these is a note of its own, under its label: of two that are written at the same time, by
processes that know nothing of each other, none is lost.
"""

from __future__ import annotations

import msgspec

from millrace.server.aws.known import PREFIX, Known
from millrace.server.aws.names import Home, arn_of

POLICY = f"{PREFIX}Policy"
VERSION = "2008-10-17"
"""Of a policy that AddPermission begins."""
PERMISSION = f"{PREFIX}permission:"


def read_policy(known: Known) -> tuple[dict[str, object], list[object]]:
    """The policy as it was set, and its statements; of a note that is none, nothing."""
    read = _decoded(known.notes.get(POLICY, ""))
    policy: dict[str, object] = read if isinstance(read, dict) else {}
    found = policy.get("Statement", [])
    return policy, list(found) if isinstance(found, list) else [found]


def _decoded(text: str) -> object:
    try:
        return msgspec.json.decode(text) if text else {}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # Another API may have written it.
        return {}


def is_labelled(statement: object, label: str) -> bool:
    """Whether a statement has this label."""
    return isinstance(statement, dict) and statement.get("Sid") == label


def policy_of(known: Known, home: Home) -> str:
    """The whole policy; as it was set, where nothing was written since. Empty: there is none."""
    added = [text for name, text in sorted(known.notes.items()) if name.startswith(PERMISSION)]
    if not added:
        return known.notes.get(POLICY, "")
    policy, statements = read_policy(known)
    arn = arn_of("sqs", home, known.queue.name)
    policy.setdefault("Version", VERSION)
    policy.setdefault("Id", f"{arn}/SQSDefaultPolicy")
    policy["Statement"] = [*statements, *map(_decoded, added)]
    return msgspec.json.encode(policy).decode()


def one_or_all(texts: list[str]) -> str | list[str]:
    """Return the texts as policies have them: a single one by itself, several as a list."""
    return texts[0] if len(texts) == 1 else texts


def without_permissions(known: Known) -> dict[str, str]:
    """Notes by which what AddPermission wrote is gone: a policy that is set replaces it."""
    return {name: "" for name in known.notes if name.startswith(PERMISSION)}
