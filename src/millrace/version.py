"""The version of this package, for those who must not import all of it."""

from __future__ import annotations

__version__ = "0.1.0.dev0"
