"""The network that a client address is counted as.

Limits per address (failed logins, unauthenticated connections and bodies) would have no effect over
IPv6: providers assign each customer a whole /64, so that one host has 2^64 addresses.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address


@lru_cache(maxsize=4_096)
def network_of(address: str) -> str:
    """Return the network of `address` for limits per address: for IPv6 its /64, else itself.

    An IPv4 address that is mapped into IPv6 counts as the IPv4 address. Text that is not an IP
    address, such as the name of a socket, is returned unchanged.
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return f"{IPv6Address(int(parsed) >> 64 << 64)}/64"
    return str(parsed)


def is_loopback(address: str) -> bool:
    """Return whether an address is a loopback address of this machine."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback
