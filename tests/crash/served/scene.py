"""The queues that the clients of a server use, and the settings under which it runs."""

from __future__ import annotations

from tests.crash import scene

QUEUES = {name: scene.QUEUES[name] for name in ("plain", "keyed", "input", "output")}

CHORES = "chores"

CHORE_SECONDS = 10.0
"""For how long the worker leases chores."""

HOLD_SECONDS = 30.0
"""For how long some messages are leased: longer than any restart takes."""

CLIENTS = 4
"""Two connect, two speak plain REST."""

CONFIG = f"""
[engine]
segment_bytes = {scene.SETTINGS.segment_bytes}
log_segments_max = {scene.SETTINGS.log_segments_max}
log_segments_free = {scene.SETTINGS.log_segments_free}
log_segments_unsealed = {scene.SETTINGS.log_segments_unsealed}
checkpoint_seconds = {scene.SETTINGS.checkpoint_seconds}
checkpoint_log_bytes = {scene.SETTINGS.checkpoint_log_bytes}
"""
"""So small that a second of work sees checkpoints, sealing and files written anew."""
