"""An endpoint that subscribes by HTTP, in a thread, and what it was sent."""

from __future__ import annotations

import json
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from threading import Thread
from types import TracebackType
from typing import NamedTuple
from urllib.request import urlopen

from tests.server.authority import Pair
from tests.support.timeouts import scaled

WAIT_SECONDS = scaled(60)


class Posted(NamedTuple):
    """A request that came."""

    path: str
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> dict[str, str]:
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found


class Endpoint:
    """Takes what is posted, and answers as it is told to."""

    def __init__(self, tls: Pair | None = None) -> None:
        self._posted: Queue[Posted] = Queue()
        self._statuses: Queue[int] = Queue()
        endpoint = self

        class Taking(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                headers = {name.lower(): value for name, value in self.headers.items()}
                status = 200 if endpoint._statuses.empty() else endpoint._statuses.get()
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()
                endpoint._posted.put(Posted(self.path, headers, body))

            def log_message(self, format: str, *args: object) -> None:
                """Nothing is written."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.certificate, tls.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Endpoint:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}/news?a=b"

    def answer(self, *statuses: int) -> None:
        """Answer the next ones so, and then 200."""
        for status in statuses:
            self._statuses.put(status)

    def next(self) -> Posted:
        """What came next."""
        return self._posted.get(timeout=WAIT_SECONDS)

    @property
    def is_silent(self) -> bool:
        """Whether nothing came that was not taken."""
        return self._posted.empty()

    def confirm(self) -> Posted:
        """Say yes to the question that comes next, which is returned."""
        asked = self.next()
        assert asked.headers["x-amz-sns-message-type"] == "SubscriptionConfirmation"
        with urlopen(asked.json["SubscribeURL"], timeout=WAIT_SECONDS) as answer:
            assert answer.status == 200
        return asked
