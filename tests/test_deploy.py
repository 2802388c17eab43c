"""What `deploy/` has, as far as it can be checked without the programs that read it."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from millrace.server.process.server_settings import ENGINE_FIELDS, FIELDS
from tests.server.authority import Authority
from tests.server.server_process import Process

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
    source = (ROOT / "src" / "millrace" / "server" / "web" / "metrics.py").read_text()
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


def test_5_7_alerts_pass_over_logs_and_the_queues_of_the_server() -> None:
    [group] = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    rules = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    old, lags = rules["MillraceQueueOld"], rules["MillraceCursorLags"]
    assert 'millrace_oldest_seconds{space!="system",retention!="log"}' in old
    assert 'space!="system"' in lags


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


def test_sec_28_the_unit_is_closed() -> None:
    lines = (DEPLOY / "millrace.service").read_text().splitlines()
    for line in (
        "CapabilityBoundingSet=",
        "AmbientCapabilities=",
        "SystemCallArchitectures=native",
        "SystemCallFilter=@system-service",
        "SystemCallFilter=~@privileged",
        "MemoryMax=80%",
        "ProtectKernelModules=true",
        "ProtectKernelLogs=true",
        "ProtectProc=invisible",
        "RestrictNamespaces=true",
        "RestrictRealtime=true",
        "DevicePolicy=closed",
        "UMask=0077",
    ):
        assert lines.count(line) == 1, line


@pytest.mark.process
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_sec_28_systemd_knows_every_line_of_the_unit() -> None:
    verify = ["systemd-analyze", "verify", str(DEPLOY / "millrace.service")]
    said = subprocess.run(verify, capture_output=True, text=True, check=False).stderr
    assert "millrace.service:" not in said.replace("millrace.service: Command /opt", "")
    assert "Unknown" not in said, said


def test_sec_28_services_are_closed() -> None:
    composed = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for name, service in composed["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name
        assert service["pids_limit"], name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        for volume in service["volumes"]:
            assert volume.endswith(":ro") or volume.partition(":")[0] in composed["volumes"], name
    server = composed["services"]["millrace"]
    units = {"g": 2**30, "m": 2**20}
    limit = int(server["mem_limit"][:-1]) * units[server["mem_limit"][-1]]
    assert int(server["environment"]["MILLRACE_ENGINE_MEMORY_HIGH"]) < limit


def test_sec_28_images_can_be_pinned_by_digest() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    bases = [line.split()[1] for line in text.splitlines() if line.startswith("FROM")]
    assert bases == ["${PYTHON_IMAGE}"] * 2
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    images = [service.get("image") for service in services.values() if "image" in service]
    images.append(services["millrace"]["build"]["args"]["PYTHON_IMAGE"])
    readme = (DEPLOY / "README.md").read_text()
    for image in images:
        # A variable that takes a digest, and the tag of one version where it is not set.
        found = re.fullmatch(
            r"\$\{([A-Z]+_IMAGE):-docker\.io/[a-z/]+:v?\d+\.\d+\.\d+[a-z-]*\}", image
        )
        assert found, image
        assert f"{found[1]}=docker.io/" in readme
        assert "latest" not in image


def test_sec_28_the_token_of_prometheus_is_written_for_its_owner_alone() -> None:
    readme = (DEPLOY / "README.md").read_text()
    written = [line for line in readme.splitlines() if "> deploy/metrics.token" in line]
    assert written
    assert all("(umask 077;" in line for line in written)
    assert "/deploy/metrics.token" in (ROOT / ".gitignore").read_text().splitlines()


def test_what_the_image_copies_is_there() -> None:
    for line in (DEPLOY / "Containerfile").read_text().splitlines():
        if line.startswith("COPY") and "--from" not in line:
            for name in line.split()[1:-1]:
                assert (ROOT / name).exists(), name


def test_what_the_image_installs_is_pinned_with_hashes() -> None:
    installs = re.findall(r"pip install (.*)", (DEPLOY / "Containerfile").read_text())
    assert len(installs) == 3
    assert all("--require-hashes" in one or "--no-index" in one for one in installs)

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["cli"], *extras["otel"], *extras["server"]]
    image, whole = pins(DEPLOY / "requirements.lock"), pins(ROOT / "requirements.lock")
    assert image.items() <= whole.items(), "run `make lock`"
    names = {pin.partition("==")[0] for pin in image}
    assert {one.partition(">=")[0] for one in wanted} <= names, "run `make lock`"
    assert "pytest" not in names


def pins(path: Path) -> dict[str, str]:
    """The hashes of each package and version."""
    found = re.findall(r"^(\S+==\S+)[^\\]*\\\n((?:    --hash.*\n)+)", path.read_text(), re.M)
    return {pin: hashes.replace("\\", "") for pin, hashes in found}


@pytest.mark.process
@pytest.mark.parametrize("way", ["plain", "tls", "clients need certificates"])
def test_the_image_finds_out_whether_its_server_is_ready(tmp_path: Path, way: str) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("queues.example.org")
    options: list[object] = []
    if way != "plain":
        options = ["--tls-certificate", pair.certificate, "--tls-key", pair.key]
    if way == "clients need certificates":
        options += ["--set", f"tls_client_ca={authority.path}"]
    with Process(tmp_path / "data", *options) as server:
        variables = {"MILLRACE_LISTEN": f"0.0.0.0:{server.port};[::]:1"}
        if way == "clients need certificates":
            variables["MILLRACE_TLS_CLIENT_CA"] = str(authority.path)
        assert is_ready(variables) == 0
        assert server.stop() == 0
    assert is_ready(variables) == 1


def is_ready(variables: dict[str, str]) -> int:
    ready = [sys.executable, str(DEPLOY / "ready.py")]
    return subprocess.run(ready, env={**os.environ, **variables}, check=False).returncode
