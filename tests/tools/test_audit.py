"""Reports on dependencies: nothing that was not audited counts as safe."""

from __future__ import annotations

import json

import pytest

from tools.audit import read_report
from tools.licences import Package, find_packages


def test_a_package_without_advisories_does_not_count_as_audited() -> None:
    packages = [
        {"name": "a", "version": "1", "vulns": []},
        {"name": "b", "skip_reason": "not found"},
        {"name": "c", "version": "3", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.1"]}]},
    ]
    report = read_report(json.dumps({"dependencies": packages}))
    assert (report.audited, report.skipped) == (2, ["b"])
    assert report.vulnerable == ["c 3: PYSEC-1, fixed in 3.1"]


def test_every_package_that_the_product_installs_has_an_accepted_licence() -> None:
    packages = find_packages()
    assert {"pyarrow", "msgspec", "cryptography", "certifi"} <= {one.name for one in packages}
    assert "pytest" not in {one.name for one in packages}
    assert not [one for one in packages if not one.is_accepted]


@pytest.mark.parametrize(
    ("licence", "is_accepted"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("unknown", False),
    ],
)
def test_of_a_choice_of_licences_one_must_be_accepted(licence: str, *, is_accepted: bool) -> None:
    assert Package("a", "1", licence).is_accepted is is_accepted
