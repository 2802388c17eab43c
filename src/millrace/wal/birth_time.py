"""The time of birth of a file, which Python's own `stat` does not give on Linux.

It tells a file from its copy. The time of the last change would not do: a hard link or a changed
permission moves it, and the original would be taken for a copy.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

_AT_FDCWD = -100
_STATX_BTIME = 0x800
_BYTES = 256
_MASK = struct.Struct("=I")
_TIME = struct.Struct("=qI")
_TIME_OFFSET = 80


def birth_ns(path: Path) -> int:
    """Return when the file was made, in ns since 1970, or 0 where the file system does not say.

    Raises:
        OSError: the file cannot be looked at.
    """
    library = ctypes.CDLL(None, use_errno=True)
    found = ctypes.create_string_buffer(_BYTES)
    if library.statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, found) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
    (mask,) = _MASK.unpack_from(found)
    if not mask & _STATX_BTIME:
        return 0
    seconds, nanoseconds = _TIME.unpack_from(found, _TIME_OFFSET)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)
