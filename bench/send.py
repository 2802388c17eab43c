"""A bare program that sends a file by `sendfile` to whoever connects and says a line.

`python -m bench.send FILE` prints the port where it listens.
"""

from __future__ import annotations

import os
import socket
import sys


def main() -> None:
    descriptor = os.open(sys.argv[1], os.O_RDONLY)
    size = os.fstat(descriptor).st_size
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            at = 0
            while at < size:
                at += os.sendfile(connection.fileno(), descriptor, at, size - at)


if __name__ == "__main__":
    main()
