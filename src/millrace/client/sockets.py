"""Where the socket of a folder is."""

from __future__ import annotations

import os
from pathlib import Path

from millrace import limits

SOCKET = "socket"
"""The file in the folder."""

POINTER = "socket.path"
"""Where the folder's path is too long for a socket, this file names the place of a shorter one."""


def socket_of(folder: Path) -> Path | None:
    """The socket of whoever has the folder open, if it shares it."""
    path = folder / SOCKET
    if len(os.fsencode(path)) > limits.SOCKET_PATH_BYTES_MAX:
        try:
            path = Path((folder / POINTER).read_text())
        except (FileNotFoundError, UnicodeDecodeError):
            return None
    return path if path.is_socket() else None
