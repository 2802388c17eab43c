"""Where messages may be sent by HTTP: whoever subscribes an endpoint has the server connect to it.

Rule 1: what counts is the address that is connected to, not the name: a name is looked up here, and
its address is the one that is used. So nobody has it changed in between.
Rule 2: an address within another (IPv4 in IPv6) is judged as the one within.
Rule 3: nothing is sent to where the server itself listens, whatever the settings say: it would come
from this machine, and with rights that whoever subscribed the endpoint does not have.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from millrace.core import check
from millrace.errors import Invalid
from millrace.server.address import Address
from millrace.server.sns.special import is_public, within

ANY = "any"
PUBLIC = "public"

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
        self.own: tuple[Address, ...] = ()
        """Where the server itself listens: nothing is ever sent there."""

    async def address(self, host: str, port: int) -> str:
        """The address to connect to for a host.

        Raises:
            Unreachable: nothing may be sent there.
            OSError: nobody knows the host.
        """
        takes_all = self._is_any or self._is_named(host.lower().rstrip("."))
        addresses = await self._resolve(host)
        is_own = False
        for address in addresses:
            if not takes_all and not self._takes(address):
                continue
            if not self._is_own(address, port):
                return address
            is_own = True
        where = "" if addresses == [host] else f" ({', '.join(addresses)})"
        if is_own:
            raise Unreachable(f"nothing is sent to {host}{where}, where this server listens itself")
        raise Unreachable(f"nothing is sent to {host}{where}, which is none of sns_endpoints")

    def _is_named(self, host: str) -> bool:
        parts = host.split(".")
        over = ("*." + ".".join(parts[at:]) for at in range(1, len(parts)))
        return host in self._hosts or any(one in self._hosts for one in over)

    def _takes(self, text: str) -> bool:
        address = _read(text)
        if address is None:
            return False
        return (self._with_public and is_public(address)) or any(
            within(address) in network for network in self._networks
        )

    def _is_own(self, text: str, port: int) -> bool:
        address = _read(text)
        listening = [one for one in self.own if one.port == port]
        if address is None or not listening:
            return False
        address = within(address)
        # Who connects to no address in particular comes to this machine.
        is_here = address.is_unspecified or address.is_loopback or _is_of_machine(address)
        for one in listening:
            host = _read("127.0.0.1" if one.host == "localhost" else one.host)
            if host is None:
                # A name: what it stands for may be any of the machine's addresses.
                return is_here
            host = within(host)
            if host == address or (host.is_unspecified and is_here):
                return True
            if address.is_unspecified and host.is_loopback:
                return True
        return False


def _read(text: str) -> IPv4Address | IPv6Address | None:
    """An address; what an interface is called does not change where it is."""
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _is_of_machine(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is one of this machine's: only those can be bound."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def _is_network(place: str) -> bool:
    return "/" in place
