"""Millrace: a durable message queue for teams that work in Python and Spark.

`millrace.open(path)` opens a folder of queues in this process; `millrace.sync.open` is its blocking
twin. `millrace.errors` has every error, by what the caller must do.
"""

from millrace import errors, sync
from millrace.client.cursor import Cursor, Snapshot
from millrace.client.lease import Lease
from millrace.client.message import Message
from millrace.client.millrace import Millrace
from millrace.client.opening import open
from millrace.client.queue import Queue
from millrace.client.transaction import Transaction
from millrace.core.model import Row
from millrace.errors import Fatal, MillraceError, Refused, Retry
from millrace.settings import Settings

__version__ = "0.1.0.dev0"

__all__ = [
    "Cursor",
    "Fatal",
    "Lease",
    "Message",
    "Millrace",
    "MillraceError",
    "Queue",
    "Refused",
    "Retry",
    "Row",
    "Settings",
    "Snapshot",
    "Transaction",
    "__version__",
    "errors",
    "open",
    "sync",
]
