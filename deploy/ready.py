"""Is the server of this container ready? Ends with 0 if it is, else with 1 and why.

It is asked at the first address of MILLRACE_LISTEN, from inside: with TLS if there is, and without
a look at the certificate, which is made out to another name. Where MILLRACE_TLS_CLIENT_CA says that
clients need certificates, which this has not, a server that listens is taken for ready.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
import urllib.request
from http.client import HTTPException

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
_SECONDS = 2
_UNCHECKED = ssl.create_default_context()
_UNCHECKED.check_hostname = False
_UNCHECKED.verify_mode = ssl.CERT_NONE
# Nothing between this and the server.
_OPENER = urllib.request.build_opener(
    urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=_UNCHECKED)
)


def ask(scheme: str, host: str, port: str) -> str:
    """Why it is not ready; nothing, if it is."""
    try:
        if scheme == "tcp":
            socket.create_connection((host.strip("[]"), int(port)), _SECONDS).close()
        else:
            _OPENER.open(f"{scheme}://{host}:{port}/readyz", timeout=_SECONDS).close()
    except (OSError, ValueError, HTTPException) as error:
        return f"{scheme}: {error}"
    return ""


def main() -> int:
    """Ask, in the way that is likelier first."""
    listen = os.environ.get("MILLRACE_LISTEN", "127.0.0.1:7070").partition(";")[0].strip()
    host, _, port = listen.rpartition(":")
    if os.environ.get("MILLRACE_TLS_CLIENT_CA"):
        schemes = ["tcp"]
    elif os.environ.get("MILLRACE_TLS_CERTIFICATE"):
        schemes = ["https"]
    else:
        # A file of settings may name a certificate, too.
        schemes = ["http", "https"]
    why = []
    for scheme in schemes:
        found = ask(scheme, _EVERYWHERE.get(host, host), port)
        if not found:
            return 0
        why.append(found)
    sys.stderr.write("; ".join(why) + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
