"""Calls of the query protocol, signed as an older client signs them."""

from __future__ import annotations

import http.client
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.server.aws.site import REGION, AwsSite


class Told(NamedTuple):
    """What a call was answered."""

    status: int
    text: str
    type: str


def query(
    site: AwsSite, url: str, method: str = "POST", *, accept: str = "*/*", **params: str
) -> Told:
    """Ask at an address: a GET in the address, anything else by a form."""
    form = urlencode(params)
    is_get = method == "GET"
    headers = {"Accept": accept}
    if not is_get:
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    address = f"{url}?{form}" if is_get and form else url
    asked = AWSRequest(method, address, data="" if is_get else form, headers=headers)
    SigV4Auth(Credentials(site.root.id, site.root.secret), "sqs", REGION).add_auth(asked)
    split = urlsplit(address)
    connection = http.client.HTTPConnection("127.0.0.1", site.process.port, timeout=30)
    try:
        path = f"{split.path or '/'}?{split.query}" if split.query else split.path or "/"
        connection.request(method, path, None if is_get else form, dict(asked.headers.items()))
        answer = connection.getresponse()
        text = answer.read().decode()
        return Told(answer.status, text, answer.headers.get("content-type", ""))
    finally:
        connection.close()
