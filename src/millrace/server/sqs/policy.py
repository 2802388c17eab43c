"""The policy of a queue: the text of the Policy attribute, and statements that AddPermission added
since.

Each added statement is a note of its own, with its label in the key, so that concurrent additions
of different processes are all kept.
"""

from __future__ import annotations

import msgspec

from millrace.server.aws.names import AccountRegion, arn_of
from millrace.server.aws.queue_info import PREFIX, QueueInfo

POLICY = f"{PREFIX}Policy"
VERSION = "2008-10-17"
"""Version of a policy that AddPermission creates."""
PERMISSION = f"{PREFIX}permission:"


def read_policy(known: QueueInfo) -> tuple[dict[str, object], list[object]]:
    """Return the Policy attribute and its statements; both empty if the note is invalid."""
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
    """Return whether a statement has this label."""
    return isinstance(statement, dict) and statement.get("Sid") == label


def policy_of(known: QueueInfo, home: AccountRegion) -> str:
    """Return the complete policy, unchanged if no statements were added; empty if there is no
    policy.
    """
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


def without_permissions(known: QueueInfo) -> dict[str, str]:
    """Return note changes that remove all added statements, since a new policy replaces them."""
    return {name: "" for name in known.notes if name.startswith(PERMISSION)}
