"""What `deploy/` has, as far as it can be checked without the programs that read it."""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path

import yaml

from millrace.server.config import ENGINE_FIELDS, FIELDS

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
VARIABLE = re.compile(r"\bMILLRACE_[A-Z_]+\b")
METRIC = re.compile(r"\bmillrace_[a-z_]+\b")


def files(*endings: str) -> list[Path]:
    return sorted(path for path in DEPLOY.iterdir() if path.name.endswith(endings))


def test_every_variable_is_a_setting() -> None:
    known = {"MILLRACE_CONFIG", *(f"MILLRACE_{name.upper()}" for name in FIELDS)}
    known |= {f"MILLRACE_ENGINE_{name.upper()}" for name in ENGINE_FIELDS}
    for path in DEPLOY.iterdir():
        found = set(VARIABLE.findall(path.read_text()))
        assert found <= known, path


def test_every_metric_is_one_that_the_server_tells_of() -> None:
    source = (ROOT / "src" / "millrace" / "server" / "metrics.py").read_text()
    known = set(METRIC.findall(source))
    assert len(known) > 15
    for path in files("alerts.yaml", "dashboard.json"):
        found = {
            re.sub(r"_(bucket|sum|count)$", "", name) for name in METRIC.findall(_no_names(path))
        }
        assert found, path
        assert found <= known, (path, found - known)


def _no_names(path: Path) -> str:
    """The text without what Grafana calls things."""
    return path.read_text().replace('"millrace"', "")


def test_yaml_and_json_can_be_read() -> None:
    for path in files(".yaml"):
        assert yaml.safe_load(path.read_text()), path
    board = json.loads((DEPLOY / "dashboard.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    assert all(target["expr"] for panel in panels for target in panel["targets"])


def test_every_alert_says_what_to_do() -> None:
    [group] = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        assert rule["annotations"]["what_to_do"], rule
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_files_that_are_mounted_are_there() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("./") and source != "./metrics.token":
                assert (DEPLOY / source).is_file(), source


def test_the_unit_is_one() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "millrace.service")
    assert unit["Service"]["ExecStart"].split()[1] == "serve"
    assert unit["Service"]["NoNewPrivileges"] == "true"
    # Longer than the server itself waits for requests at its end.
    assert int(unit["Service"]["TimeoutStopSec"]) > 10


def test_what_the_image_copies_is_there() -> None:
    for line in (DEPLOY / "Containerfile").read_text().splitlines():
        if line.startswith("COPY") and "--from" not in line:
            for name in line.split()[1:-1]:
                assert (ROOT / name).exists(), name
