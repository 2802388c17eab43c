"""Where a queue is, as the options of a data source say it.

Rule 1: an address is pickled to wherever rows are read or written; connections are made there, and
kept for as long as the process lasts.
Rule 2: a token is no option, since plans and logs show options: it comes by file or environment.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

import msgspec

from millrace import sync
from millrace.core import check
from millrace.errors import Invalid
from millrace.spark.home import Home, reach


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of a server (`url`), or in a folder (`path`) that somebody shares."""

    url: str = ""
    path: str = ""
    space: str = "default"
    queue: str
    token_file: str = ""
    certificates: str = ""
    host: str = ""
    """The machine that the folder is on."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Address:
        """What the options name.

        Raises:
            Invalid: an option is missing, or says what cannot be.
        """
        given = {name.lower(): value for name, value in options.items()}
        if "token" in given:
            raise Invalid(
                "token is no option: plans and logs show options; name a file of the executors by "
                "tokenFile, or set MILLRACE_TOKEN or MILLRACE_TOKEN_FILE for them",
                field="token",
            )
        url, path = given.get("url", ""), given.get("path", "")
        if bool(url) == bool(path):
            raise Invalid(
                "name the server by the option url, or a folder by path, one of them", field="url"
            )
        if not given.get("queue"):
            raise Invalid("name the queue by the option queue", field="queue")
        return cls(
            url=url,
            path=path,
            space=check.name(given.get("space", "default"), "space"),
            queue=check.name(given["queue"], "queue"),
            token_file=given.get("tokenfile", ""),
            certificates=given.get("certificates", ""),
            host=socket.gethostname() if path else "",
        )

    @property
    def home(self) -> Home:
        """Where the queues are that it is one of."""
        return Home(self.url, self.path, self.token_file, self.certificates, host=self.host)

    def reach(self) -> sync.Queue:
        """The queue, over a connection that this process keeps.

        Raises:
            NotFound: there is none; it is not made here.
            Closed: nobody answers there.
        """
        return reach(self.home).blocking().find(self.queue, space=self.space)
