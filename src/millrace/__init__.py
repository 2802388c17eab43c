"""Millrace: a durable message queue for Python and Spark.

`millrace.open(path)` opens a folder of queues in this process; `millrace.sync.open` is its blocking
twin. `millrace.errors` has all errors, grouped by the way to handle them.

Names are imported lazily, on first use: the help of the command line need not wait for Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from millrace.version import __version__

if TYPE_CHECKING:
    from millrace import errors, sync
    from millrace.client.connecting import connect
    from millrace.client.cursor import Cursor, Pinned, Snapshot
    from millrace.client.lease import Lease
    from millrace.client.maintenance import restore, verify
    from millrace.client.maintenance_results import Backup, Health, Repaired, Restored, Verified
    from millrace.client.message import Message
    from millrace.client.millrace import Millrace
    from millrace.client.opening import open
    from millrace.client.position import Position
    from millrace.client.publisher import Confirmation, Publisher, Unconfirmed
    from millrace.client.queue import Queue
    from millrace.client.redrive import Redrive, RedriveStats
    from millrace.client.session import Session
    from millrace.client.settings import QueueSettings
    from millrace.client.shards import Shards
    from millrace.client.topic import Sent, SentMany, Subscription, Topic, TopicState
    from millrace.client.transaction import Later, Transaction
    from millrace.client.work import Work
    from millrace.client.worker import Verdict, Worker, WorkerStats
    from millrace.core.answers import Explanation, Holder, Holders
    from millrace.core.model import Place, Row
    from millrace.core.spec import QueueSpec
    from millrace.errors import Fatal, MillraceError, Refused, Retry
    from millrace.server.rpc.sharing import share
    from millrace.settings import Settings

__all__ = [
    "Backup",
    "Confirmation",
    "Cursor",
    "Explanation",
    "Fatal",
    "Health",
    "Holder",
    "Holders",
    "Later",
    "Lease",
    "Message",
    "Millrace",
    "MillraceError",
    "Pinned",
    "Place",
    "Position",
    "Publisher",
    "Queue",
    "QueueSettings",
    "QueueSpec",
    "Redrive",
    "RedriveStats",
    "Refused",
    "Repaired",
    "Restored",
    "Retry",
    "Row",
    "Sent",
    "SentMany",
    "Session",
    "Settings",
    "Shards",
    "Snapshot",
    "Subscription",
    "Topic",
    "TopicState",
    "Transaction",
    "Unconfirmed",
    "Verdict",
    "Verified",
    "Work",
    "Worker",
    "WorkerStats",
    "__version__",
    "connect",
    "errors",
    "open",
    "restore",
    "share",
    "sync",
    "verify",
]

_HOMES = {
    "Backup": "millrace.client.maintenance_results",
    "Confirmation": "millrace.client.publisher",
    "Cursor": "millrace.client.cursor",
    "Explanation": "millrace.core.answers",
    "Fatal": "millrace.errors",
    "Health": "millrace.client.maintenance_results",
    "Holder": "millrace.core.answers",
    "Holders": "millrace.core.answers",
    "Later": "millrace.client.transaction",
    "Lease": "millrace.client.lease",
    "Message": "millrace.client.message",
    "Millrace": "millrace.client.millrace",
    "MillraceError": "millrace.errors",
    "Pinned": "millrace.client.cursor",
    "Place": "millrace.core.model",
    "Position": "millrace.client.position",
    "Publisher": "millrace.client.publisher",
    "Queue": "millrace.client.queue",
    "QueueSettings": "millrace.client.settings",
    "QueueSpec": "millrace.core.spec",
    "Redrive": "millrace.client.redrive",
    "RedriveStats": "millrace.client.redrive",
    "Refused": "millrace.errors",
    "Repaired": "millrace.client.maintenance_results",
    "Restored": "millrace.client.maintenance_results",
    "Retry": "millrace.errors",
    "Row": "millrace.core.model",
    "Sent": "millrace.client.topic",
    "SentMany": "millrace.client.topic",
    "Session": "millrace.client.session",
    "Settings": "millrace.settings",
    "Shards": "millrace.client.shards",
    "Snapshot": "millrace.client.cursor",
    "Subscription": "millrace.client.topic",
    "Topic": "millrace.client.topic",
    "TopicState": "millrace.client.topic",
    "Transaction": "millrace.client.transaction",
    "Unconfirmed": "millrace.client.publisher",
    "Verdict": "millrace.client.worker",
    "Verified": "millrace.client.maintenance_results",
    "Work": "millrace.client.work",
    "Worker": "millrace.client.worker",
    "WorkerStats": "millrace.client.worker",
    "connect": "millrace.client.connecting",
    "open": "millrace.client.opening",
    "restore": "millrace.client.maintenance",
    "share": "millrace.server.rpc.sharing",
    "verify": "millrace.client.maintenance",
}
"""Modules of the lazily imported names."""


def __getattr__(name: str) -> object:
    if name in ("errors", "sync"):
        return import_module(f"millrace.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'millrace' has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
