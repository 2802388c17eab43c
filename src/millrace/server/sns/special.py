"""Addresses that are not of the internet at large: nobody subscribes an endpoint there.

The list is that of IANA's registries of special-purpose addresses, of multicast and of what is
reserved, with the addresses at which clouds tell their machines secrets. It is our own: what Python
takes for global depends on its version, and it knows no clouds.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

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
            # Azure's platform, which answers every machine there.
            "168.63.129.16/32",
        ),
    )
)
"""That of Oracle's cloud (192.0.0.192), of Alibaba's (100.100.100.200) and the usual one
(169.254.169.254) are within these."""

_IPV6_GLOBAL = IPv6Network("2000::/3")
"""Nothing else was ever given out for the internet."""

_IPV6 = tuple(
    map(
        IPv6Network,
        (
            # Of protocols: Teredo, benchmarks, ORCHID and others.
            "2001::/23",
            "2001:db8::/32",
            "2002::/16",
            "2620:4f:8000::/48",
            "3fff::/20",
        ),
    )
)
"""Those of clouds (fd00:ec2::254 and the like) are not within 2000::/3."""

_NAT64 = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")
_COMPATIBLE = IPv6Network("::/96")
_TRANSLATED = IPv6Network("::ffff:0:0:0/96")


def within(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that one of IPv6 stands for, or else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    number = int(address)
    if address in _NAT64 or address in _TRANSLATED or (address in _COMPATIBLE and number > 1):
        return IPv4Address(number & 0xFFFF_FFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is of the internet at large, and so is the one within it."""
    inner = within(address)
    if isinstance(inner, IPv4Address):
        # Where an address is translated on its way, what counts is where it ends.
        return not any(inner in network for network in _IPV4)
    if inner in _NAT64_LOCAL or inner not in _IPV6_GLOBAL:
        return False
    return not any(inner in network for network in _IPV6)
