"""Client addresses: headers that show that a proxy forwarded a request, and networks.

A request from this machine's own address may come from anyone if a proxy, tunnel or load balancer
sent it. Such programs usually add headers with the client's address, its certificate or a trace.
The rules match whole families of names, because each product has its own: a list of full names
would never be complete. No list detects a proxy that adds nothing.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from millrace import limits

TRACE_ID = "x-amzn-trace-id"
"""A header of AWS load balancers, and of AWS SDKs that run inside Lambda."""

_NAMES = frozenset(
    {
        "client-ip",
        "disguised-host",
        "front-end-https",
        "max-forwards",
        "surrogate-capability",
        "via",
        "was-default-hostname",
        "x-client-dn",
        "x-client-verify",
        "x-host",
        "x-https",
        "x-pull",
        "x-queue-start",
        "x-real-port",
        "x-request-start",
        "x-scheme",
        "x-script-name",
        "x-url-scheme",
        TRACE_ID,
    }
)

_PREFIXES = (
    "$ws",
    "akamai-",
    "ali-cdn-",
    "cdn-",
    "cf-",
    "cloudfront-",
    "coming-from",
    "eagleeye-",
    "fastly-",
    "fly-",
    "forwarded",
    "http-x-",
    "incap-",
    "ngrok-",
    "proxy-",
    "remote-",
    "rndr-",
    "ssl-",
    "tailscale-",
    "wl-proxy-",
    "x-accel-",
    "x-akamai-",
    "x-amz-cf-",
    "x-amzn-apigateway-",
    "x-amzn-lattice-",
    "x-amzn-mtls-",
    "x-amzn-oidc-",
    "x-amzn-tls-",
    "x-amzn-waf-",
    "x-appengine-",
    "x-appgw-",
    "x-arr-",
    "x-auth-request-",
    "x-authentik-",
    "x-azure-",
    "x-bluecoat-",
    "x-client-cert",
    "x-client-port",
    "x-cloud-trace-",
    "x-envoy-",
    "x-forwarded",
    "x-forwarder",
    "x-goog-authenticated-",
    "x-goog-iap-",
    "x-haproxy-",
    "x-ingress-",
    "x-kong-",
    "x-ms-client-principal",
    "x-nf-",
    "x-nginx-",
    "x-original-",
    "x-pomerium-",
    "x-proxy",
    "x-remote-",
    "x-replaced-",
    "x-rewrite-",
    "x-ssl-",
    "x-sucuri-",
    "x-tls-client-",
    "x-varnish",
    "x-vercel-",
    "x-waws-",
)
"""None of them begins a header that SDKs of AWS send: `x-amz-date`, `x-amz-target`,
`x-amz-content-sha256`, `x-amz-security-token`, `x-amzn-query-mode`, `amz-sdk-*`."""

_SUFFIXES = ("-addr", "-address", "-clientip", "-forwarded-for", "-ip", "-via")
"""`-ip` covers `x-real-ip`, `proxy-client-ip`, `true-client-ip`, `cf-connecting-ip` and others."""


@lru_cache(maxsize=limits.HTTP_NAMES_KNOWN_MAX)
def is_of_proxy(name: str) -> bool:
    """Return whether a header of this name, in lower case, shows that a proxy sent the request."""
    return name in _NAMES or name.startswith(_PREFIXES) or name.endswith(_SUFFIXES)


def is_of_sdk(trace_id: str) -> bool:
    """Return whether a trace id is one that SDKs of AWS send inside Lambda.

    Lambda names the parent in it. A load balancer adds `Self=` to a trace id that a client sent,
    and names no parent in one of its own.
    """
    fields = [field.partition("=")[0].strip() for field in trace_id.split(";")]
    return "Parent" in fields and "Self" not in fields


# --- The network that a client address is counted as ---------------------------------------------
#
# Limits per address (failed logins, unauthenticated connections and bodies) would have no effect
# over IPv6: providers assign each customer a whole /64, so that one host has 2^64 addresses.


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
