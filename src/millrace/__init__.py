"""Millrace: a durable message queue for teams that work in Python and Spark.

`millrace.open(path)` opens a folder of queues in this process; `millrace.sync.open` is its blocking
twin.
"""

from millrace.client.opening import open
from millrace.core.model import Message, Row
from millrace.errors import Fatal, MillraceError, Refused, Retry
from millrace.settings import Settings

__version__ = "0.1.0.dev0"

__all__ = [
    "Fatal",
    "Message",
    "MillraceError",
    "Refused",
    "Retry",
    "Row",
    "Settings",
    "__version__",
    "open",
]
