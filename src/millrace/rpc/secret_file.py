"""Files with secrets, such as keys and tokens: refused if others can read or change them.

A secret that others can read is none, which its owner may not know. A private key that its group
can read is refused, too, since members of a group change unnoticed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from millrace.errors import Invalid


def check_private(descriptor: int, path: Path, field: str) -> None:
    """Refuse an open file that anyone but its owner may read, change or execute.

    The descriptor is checked, not the path, so that it is the file that is read afterwards.

    Raises:
        Invalid: its mode has bits for the group or for others; the error names the command to run.
    """
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & 0o077:
        raise Invalid(
            f"{path} holds a secret, and its mode is {mode:04o}: others may read or change it; "
            f"run `chmod 600 {path}`",
            field=field,
        )
