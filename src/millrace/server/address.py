"""Addresses to listen at."""

from __future__ import annotations

from typing import NamedTuple

from millrace.errors import Invalid
from millrace.server.guard import is_loopback


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether nobody but this machine can reach it."""
        return self.host == "localhost" or is_loopback(self.host)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str, field: str) -> Address:
    """An address as `127.0.0.1:7070` or `[::1]:7070`.

    Raises:
        Invalid: it is none.
    """
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    is_number = port.isascii() and port.isdecimal() and len(port) <= len("65535")
    if not colon or not host or not is_number or int(port) > 65_535:
        raise Invalid(
            f"{field} {text[:100]!r} is no address; write it as 127.0.0.1:7070 or [::1]:7070",
            field=field,
            limit=65_535,
        )
    return Address(host, int(port))
