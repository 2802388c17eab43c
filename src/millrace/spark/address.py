"""Address of a queue that is written, as the options of a data source name it.

Rule 1: an address is pickled to the tasks that write rows; connections are made there, and kept for
the lifetime of the process.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millrace import sync
from millrace.spark.home import QueueEndpoint, reach
from millrace.spark.raw_options import HOME, RawOptions


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of a server, or in a shared folder."""

    home: QueueEndpoint
    space: str
    queue: str

    @classmethod
    def of(cls, given: RawOptions) -> Address:
        """Read the address from options.

        Raises:
            Invalid: an option is missing, or has an invalid value.
        """
        space, queue = given.queue()
        return cls(home=given.home(), space=space, queue=queue)

    @classmethod
    def told(cls, options: Mapping[str, str]) -> Address:
        """Read the address from options that contain nothing else."""
        return cls.of(RawOptions(options, HOME, "queue"))

    def reach(self) -> sync.Queue:
        """Return the queue, over a cached connection of this process.

        Raises:
            NotFound: the queue does not exist; it is not created here.
            Closed: the server does not respond.
        """
        return reach(self.home).blocking().find(self.queue, space=self.space)
