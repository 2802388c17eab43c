"""Files with a secret: keys, tokens. One that others may read or change is refused.

What others can read is no secret any more; whoever made the file so does not know it yet. A private
key that is readable by its group is refused, too: which accounts are in a group changes unnoticed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from millrace.errors import Invalid


def check_private(descriptor: int, path: Path, field: str) -> None:
    """Refuse an open file that anybody but its owner may read, change or run.

    The descriptor is judged, and not the path, so that it is the file that is read then.

    Raises:
        Invalid: its mode has bits for the group or for others; the error says what to run.
    """
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & 0o077:
        raise Invalid(
            f"{path} holds a secret, and its mode is {mode:04o}: others may read or change it; "
            f"run `chmod 600 {path}`",
            field=field,
        )
