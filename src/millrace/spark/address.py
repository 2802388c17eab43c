"""Where a queue is that is written to, as the options of a data source say it.

Rule 1: an address is pickled to wherever rows are written; connections are made there, and kept for
as long as the process lasts.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millrace import sync
from millrace.spark.given import HOME, Given
from millrace.spark.home import Home, reach


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of a server, or in a folder that somebody shares."""

    home: Home
    space: str
    queue: str

    @classmethod
    def of(cls, given: Given) -> Address:
        """What the options name.

        Raises:
            Invalid: an option is missing, or says what cannot be.
        """
        space, queue = given.queue()
        return cls(home=given.home(), space=space, queue=queue)

    @classmethod
    def told(cls, options: Mapping[str, str]) -> Address:
        """What options name that say nothing else."""
        return cls.of(Given(options, HOME, "queue"))

    def reach(self) -> sync.Queue:
        """The queue, over a connection that this process keeps.

        Raises:
            NotFound: there is none; it is not made here.
            Closed: nobody answers there.
        """
        return reach(self.home).blocking().find(self.queue, space=self.space)
