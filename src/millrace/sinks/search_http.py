"""An HTTP client for search indexes: JSON over a single connection."""

from __future__ import annotations

import http.client
import ssl
from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from millrace import limits
from millrace.errors import Invalid, Retry

Json = dict[str, object]


class Answer(msgspec.Struct, frozen=True):
    """A response: status code and body."""

    status: int
    body: bytes

    def json(self) -> Json:
        """Parse the body as a JSON object."""
        return msgspec.json.decode(self.body or b"{}", type=dict[str, object])

    def reason(self) -> str:
        """Return the server's reason for refusing the request."""
        try:
            error = self.json().get("error")
        except msgspec.MsgspecError:
            error = None
        if isinstance(error, dict):
            return f"{error.get('type')}: {error.get('reason')}"
        return str(error or self.body[:200].decode(errors="replace") or self.status)


class Link:
    """A connection to a server."""

    def __init__(self, url: str, certificates: str) -> None:
        found, port = _parted(url)
        if found is None or found.scheme not in ("http", "https") or not found.hostname:
            # The URL is not shown, since a malformed one may have its password anywhere.
            raise Invalid("url is not http://host:9200 or https://host:9200", field="url")
        self._prefix = found.path.rstrip("/")
        self._headers: dict[str, str] = {}
        if found.username is not None:
            pair = f"{unquote(found.username)}:{unquote(found.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        host, seconds = found.hostname, limits.SINK_ANSWER_SECONDS
        self._http: http.client.HTTPConnection
        if found.scheme == "https":
            context = ssl.create_default_context(cafile=certificates or None)
            self._http = http.client.HTTPSConnection(host, port, timeout=seconds, context=context)
        else:
            self._http = http.client.HTTPConnection(host, port, timeout=seconds)

    def ask(
        self, method: str, path: str, body: bytes | Mapping[str, object] | None = None
    ) -> Answer:
        """Return the response to a request.

        Raises:
            Retry: the server does not respond, or is overloaded.
            Invalid: authentication failed.
        """
        lines = isinstance(body, bytes)
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        kind = "application/x-ndjson" if lines else "application/json"
        try:
            self._http.request(
                method, self._prefix + path, data, {**self._headers, "Content-Type": kind}
            )
            response = self._http.getresponse()
            answer = Answer(response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Retry(
                f"the search index does not answer: {error!s}; is it running there?",
                field="url",
            ) from error
        if answer.status in (401, 403):
            raise Invalid(f"the search index lets nobody in: {answer.reason()}", field="url")
        if answer.status == 429 or answer.status >= 500:
            raise Retry(f"the search index is busy or not ready: {answer.reason()}", field="url")
        return answer

    def close(self) -> None:
        """Close the connection; the next request opens it again."""
        self._http.close()


def _parted(url: str) -> tuple[SplitResult | None, int]:
    """Return the parsed URL and its port, or None if it is malformed."""
    try:
        found = urlsplit(url)
        return found, found.port or 9200
    except ValueError:
        # The error quotes the text in the place of the port, which may be a part of the password.
        return None, 0
