"""Bounds of what runs on Spark."""

from __future__ import annotations

JAVA_VERSION_MIN = 17
"""What Spark 4 asks for."""

JAVA_TRIED_MAX = 32
"""Installations of Java that are asked for their version; each takes a quarter of a second."""

JAVA_ANSWER_SECONDS_MAX = 30
"""A Java that has not said its version by then is not one, however busy the machine."""
