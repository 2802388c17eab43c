"""Restricts the addresses that messages are sent to by HTTP, since a subscription of an endpoint
makes the server connect to it (SSRF).

Rule 1: the address is checked, not the name: the host is resolved here, and the connection is made
to the checked address, so that DNS cannot change it in between.
Rule 2: an IPv6 address that embeds an IPv4 address is checked as the embedded one.
Rule 3: nothing is sent to addresses on which the server itself listens, whatever the settings say:
such a request would come from this machine, with rights that the subscriber does not have.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from millrace.core import validate
from millrace.errors import Invalid
from millrace.server.http.listener import ListenAddress

ANY = "any"
PUBLIC = "public"

Resolve = Callable[[str], Awaitable[list[str]]]
"""Resolves a host name to its addresses."""


def read_place(field: str, text: str) -> str:
    """Validate and normalize one item of the setting of allowed places.

    Raises:
        Invalid: it is neither a keyword nor a network or host.
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
    # A malformed network is not a host name: it would never match anything.
    is_host = is_host and host.isascii() and not host.replace(".", "").isdigit()
    if not is_host:
        raise Invalid(
            f"{field} has {validate.shown(text)}, which is neither {ANY!r} nor {PUBLIC!r}, no "
            "network "
            "such as 10.0.0.0/8, and no host such as hooks.example.com or *.example.com",
            field=field,
        )
    return place


async def look_up(host: str) -> list[str]:
    """Return the addresses of a host, as the resolver of this machine has them.

    Raises:
        OSError: the host is unknown.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Unreachable(Exception):
    """An endpoint has an address that nothing may be sent to."""


class EndpointPolicy:
    """Decides which addresses messages may be sent to."""

    def __init__(self, places: Sequence[str], resolve: Resolve = look_up) -> None:
        self._is_any = ANY in places
        self._with_public = PUBLIC in places
        self._resolve = resolve
        self._hosts = {place for place in places if not _is_network(place)}
        self._networks = [ip_network(place) for place in places if _is_network(place)]
        self.own: tuple[ListenAddress, ...] = ()
        """The addresses on which the server listens: nothing is ever sent there."""

    async def address(self, host: str, port: int) -> str:
        """Resolve a host and return the address to connect to.

        Raises:
            Unreachable: none of its addresses is allowed.
            OSError: the host is unknown.
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
        # Connecting to the unspecified address reaches this machine.
        is_here = address.is_unspecified or address.is_loopback or _is_of_machine(address)
        for one in listening:
            host = _read("127.0.0.1" if one.host == "localhost" else one.host)
            if host is None:
                # A host name: it may stand for any of the machine's addresses.
                return is_here
            host = within(host)
            if host == address or (host.is_unspecified and is_here):
                return True
            if address.is_unspecified and host.is_loopback:
                return True
        return False


def _read(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address without its zone index, which does not change where it is."""
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _is_of_machine(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address belongs to this machine: only such an address can be bound."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def _is_network(place: str) -> bool:
    return "/" in place


# --- Special-purpose addresses -------------------------------------------------------------------

# They are not public. The list contains IANA's registries of special-purpose addresses, multicast
# and reserved ranges, and the metadata addresses of clouds. It is our own because the result of
# Python's `is_global` depends on its version and does not include clouds.

_IPV4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "192.175.48.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
            # Azure's platform address, which every machine there can reach.
            "168.63.129.16/32",
        ),
    )
)
"""The metadata addresses of Oracle's cloud (192.0.0.192), of Alibaba's (100.100.100.200) and the
usual one (169.254.169.254) are within these.
"""

_IPV6_GLOBAL = IPv6Network("2000::/3")
"""The only range that is allocated for the internet."""

_IPV6 = tuple(
    map(
        IPv6Network,
        (
            # Protocol assignments: Teredo, benchmarking, ORCHID and others.
            "2001::/23",
            "2001:db8::/32",
            "2002::/16",
            "2620:4f:8000::/48",
            "3fff::/20",
        ),
    )
)
"""The metadata addresses of clouds (fd00:ec2::254 and others) are outside of 2000::/3."""

_NAT64 = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")
_COMPATIBLE = IPv6Network("::/96")
_TRANSLATED = IPv6Network("::ffff:0:0:0/96")


def within(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that is embedded in an IPv6 address, or else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    number = int(address)
    if address in _NAT64 or address in _TRANSLATED or (address in _COMPATIBLE and number > 1):
        return IPv4Address(number & 0xFFFF_FFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is public; for an address that embeds another, both must be."""
    inner = within(address)
    if isinstance(inner, IPv4Address):
        # A translated address leads to the embedded one.
        return not any(inner in network for network in _IPV4)
    if inner in _NAT64_LOCAL or inner not in _IPV6_GLOBAL:
        return False
    return not any(inner in network for network in _IPV6)
