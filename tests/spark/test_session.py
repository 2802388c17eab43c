"""What a session starts with."""

from __future__ import annotations

import pytest

from millrace.spark.session import defaults, greeting, settings_of


def test_what_is_named_is_taken_instead() -> None:
    found = settings_of({"spark.master": "yarn", "spark.x": "y"})
    assert found == defaults() | {"spark.master": "yarn", "spark.x": "y"}


def test_a_session_that_is_elsewhere_has_no_master_here() -> None:
    found = settings_of({"spark.remote": "sc://there"})
    assert found == {"spark.remote": "sc://there", "spark.sql.session.timeZone": "UTC"}


@pytest.mark.parametrize(
    ("conf", "where"),
    [
        ({}, "at local[*] (10 s or so), shuffle.partitions="),
        ({"spark.master": "spark://" + 30 * "host,"}, "at spark://host,host"),
        (
            {"spark.remote": "sc://there:443/;token=secret", "spark.key": "secret"},
            "sc://there:443;",
        ),
    ],
)
def test_what_is_said_is_one_short_line_without_secrets(conf: dict[str, str], where: str) -> None:
    said = greeting(settings_of(conf))
    assert where in said
    assert len(said) <= 120
    assert "\n" not in said
    assert "docs/guide/spark-tuning.md" in said
    assert "secret" not in said
