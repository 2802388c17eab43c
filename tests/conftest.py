"""Property tests try the same examples at every run: a run that fails is one that was changed.

`make properties` looks for others. They are judged by what they find, not by how busy the machine
is.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, print_blob=True)
if settings.get_current_profile_name() in ("default", "ci"):
    settings.load_profile("same")
