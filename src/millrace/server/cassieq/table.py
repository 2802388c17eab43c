"""The table of CassieQ's routes, and what a signed address must allow for each."""

from __future__ import annotations

from millrace.server.rest.route import Route, Routes

ROUTES = Routes("cassieq")

ACCOUNTS = "/api/v1/accounts"
ACCOUNT = f"{ACCOUNTS}/{{space}}"
"""An account is a space."""

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
"""The right that a signed address must have for a route; for others there is none."""


def route_of(method: str, path: str) -> Route | None:
    """The route of a request."""
    found = ROUTES.find(path)
    return None if found is None else found[0].get("GET" if method == "HEAD" else method)
