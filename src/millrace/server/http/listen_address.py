"""Addresses that a server listens on."""

from __future__ import annotations

from typing import NamedTuple

from millrace.errors import Invalid
from millrace.server.http.client_network import is_loopback


class ListenAddress(NamedTuple):
    """Host and port that a server listens on."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """True if it is reachable from this machine alone."""
        return self.host == "localhost" or is_loopback(self.host)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str, field: str) -> ListenAddress:
    """Parse an address such as `127.0.0.1:7070` or `[::1]:7070`.

    Raises:
        Invalid: the text is not an address.
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
    return ListenAddress(host, int(port))
