"""The table of CassieQ's routes, and the right of a signed address that each requires."""

from __future__ import annotations

from millrace.server.web.route import Route, Routes

ROUTES = Routes("cassieq")

ACCOUNTS = "/api/v1/accounts"
ACCOUNT = f"{ACCOUNTS}/{{space}}"
"""The path of an account, which is a space."""

KEYS = f"{ACCOUNT}/keys"
KEY = f"{KEYS}/{{key}}"
QUEUES = f"{ACCOUNT}/queues"
QUEUE = f"{QUEUES}/{{queue}}"
STATISTICS = f"{QUEUE}/statistics"
MESSAGES = f"{QUEUE}/messages"
NEXT = f"{MESSAGES}/next"
PERMISSIONS = "/api/v1/permissions"
LEVELS = f"{PERMISSIONS}/supportedAuthorizationLevels"

LETTERS = {
    ("GET", NEXT): "r",
    ("POST", MESSAGES): "p",
    ("PUT", MESSAGES): "u",
    ("DELETE", MESSAGES): "a",
    ("GET", QUEUES): "g",
    ("GET", QUEUE): "g",
    ("GET", STATISTICS): "g",
    ("POST", QUEUES): "c",
    ("DELETE", QUEUE): "d",
}
"""The letter that a signed address needs for a route. Other routes do not accept signed
addresses.
"""


def route_of(method: str, path: str) -> Route | None:
    """Return the route of a request, or None."""
    found = ROUTES.find(path)
    return None if found is None else found[0].get("GET" if method == "HEAD" else method)
