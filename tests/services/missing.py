"""What is said where something cannot be had."""

from __future__ import annotations


class Missing(Exception):
    """A program is not here and could not be fetched; the message says what to do."""
