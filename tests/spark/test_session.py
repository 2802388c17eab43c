"""What a session starts with."""

from __future__ import annotations

from millrace.spark.session import defaults, settings_of


def test_what_is_named_is_taken_instead() -> None:
    found = settings_of({"spark.master": "local[3]", "spark.x": "y"})
    assert found == defaults() | {"spark.master": "local[3]", "spark.x": "y"}


def test_a_session_that_is_elsewhere_has_no_master_here() -> None:
    found = settings_of({"spark.remote": "sc://there"})
    assert found == {"spark.remote": "sc://there", "spark.sql.session.timeZone": "UTC"}
