"""Where messages may be sent by HTTP: whoever subscribes an endpoint has the server connect to it.

Rule 1: what counts is the address that is connected to, not the name: a name is looked up here, and
its address is the one that is used. So nobody has it changed in between.
Rule 2: an address within another (IPv4 in IPv6) is judged as the one within.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

from millrace.core import check
from millrace.errors import Invalid

ANY = "any"
PUBLIC = "public"
_NAT64 = IPv6Network("64:ff9b::/96")

Resolve = Callable[[str], Awaitable[list[str]]]
"""The addresses of a host."""


def read_place(field: str, text: str) -> str:
    """One of the places of a setting, as it is kept.

    Raises:
        Invalid: it is none.
    """
    place = text.strip().lower()
    if place in (ANY, PUBLIC):
        return place
    try:
        return str(ip_network(place))
    except ValueError:
        pass
    host = place.removeprefix("*.")
    is_host = all(
        part and part.replace("-", "").replace("_", "").isalnum() for part in host.split(".")
    )
    # A network that is written wrong is no host: nothing would ever match it.
    is_host = is_host and host.isascii() and not host.replace(".", "").isdigit()
    if not is_host:
        raise Invalid(
            f"{field} has {check.shown(text)}, which is neither {ANY!r} nor {PUBLIC!r}, no network "
            "such as 10.0.0.0/8, and no host such as hooks.example.com or *.example.com",
            field=field,
        )
    return place


async def look_up(host: str) -> list[str]:
    """The addresses of a host, as this machine has them.

    Raises:
        OSError: it has none.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Unreachable(Exception):
    """An endpoint is where nothing may be sent to."""


class Reach:
    """The places that messages may be sent to."""

    def __init__(self, places: Sequence[str], resolve: Resolve = look_up) -> None:
        self._is_any = ANY in places
        self._with_public = PUBLIC in places
        self._resolve = resolve
        self._hosts = {place for place in places if not _is_network(place)}
        self._networks = [ip_network(place) for place in places if _is_network(place)]

    async def address(self, host: str) -> str:
        """The address to connect to for a host; the host itself where any will do.

        Raises:
            Unreachable: nothing may be sent there.
            OSError: nobody knows the host.
        """
        if self._is_any or self._is_named(host.lower().rstrip(".")):
            return host
        addresses = await self._resolve(host)
        for address in addresses:
            if self._takes(address):
                return address
        where = "" if addresses == [host] else f" ({', '.join(addresses)})"
        raise Unreachable(f"nothing is sent to {host}{where}, which is none of sns_endpoints")

    def _is_named(self, host: str) -> bool:
        parts = host.split(".")
        over = ("*." + ".".join(parts[at:]) for at in range(1, len(parts)))
        return host in self._hosts or any(one in self._hosts for one in over)

    def _takes(self, text: str) -> bool:
        try:
            # What an interface is called does not change where the address is.
            address = _within(ip_address(text.partition("%")[0]))
        except ValueError:
            return False
        return (self._with_public and _is_public(address)) or any(
            address in network for network in self._networks
        )


def _is_network(place: str) -> bool:
    return "/" in place


def _within(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The address that is meant by one of another kind."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether it is an address of the internet, which anyone could send to."""
    is_local = isinstance(address, IPv6Address) and address.is_site_local
    return address.is_global and not (address.is_multicast or address.is_reserved or is_local)
