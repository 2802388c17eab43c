"""`make audit`: look for published vulnerabilities of all locked dependencies.

pip-audit runs over every lock file of the repository, in an environment of its own (`.venv-audit`,
made from `tools/locks/audit.lock`). It asks the package index for advisories; nothing is installed.

Exit codes: 0 no known vulnerability, 1 at least one, 2 the advisories of some packages could not be
read, so that the result says nothing about them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "tools" / "locks" / "audit.lock"
ENVIRONMENT = ROOT / ".venv-audit"

AUDITED = ("requirements.lock", "deploy/requirements.lock", "tests/spark/spark42.lock")

VULNERABLE, UNKNOWN = 1, 2

AUDIT_SECONDS_MAX = 600


@dataclass(slots=True)
class Report:
    """The result for one lock file."""

    audited: int = 0
    skipped: list[str] = field(default_factory=list)
    vulnerable: list[str] = field(default_factory=list)


def read_report(text: str) -> Report:
    """Read the JSON that pip-audit writes."""
    report = Report()
    for package in json.loads(text)["dependencies"]:
        if "skip_reason" in package:
            report.skipped.append(package["name"])
            continue
        report.audited += 1
        for flaw in package["vulns"]:
            fixed = ", ".join(flaw["fix_versions"]) or "no release yet"
            report.vulnerable.append(
                f"{package['name']} {package['version']}: {flaw['id']}, fixed in {fixed}"
            )
    return report


def prepare() -> Path:
    """Return the program pip-audit, installed if its lock has changed."""
    program = ENVIRONMENT / "bin" / "pip-audit"
    stamp = ENVIRONMENT / "lock.sha256"
    digest = sha256(LOCK.read_bytes()).hexdigest()
    if program.exists() and stamp.exists() and stamp.read_text() == digest:
        return program
    venv.create(ENVIRONMENT, with_pip=True, clear=True)
    pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    checked = ["install", "--quiet", "--require-hashes", "--only-binary", ":all:"]
    subprocess.run([*pip, *checked, "-r", str(LOCK)], check=True)
    stamp.write_text(digest)
    return program


def audit(program: Path, lock: str) -> Report:
    """Audit one lock file."""
    command = [str(program), "--requirement", str(ROOT / lock), "--format", "json"]
    run = subprocess.run(
        [*command, "--disable-pip", "--require-hashes", "--progress-spinner", "off"],
        capture_output=True,
        text=True,
        check=False,
        timeout=AUDIT_SECONDS_MAX,
    )
    try:
        return read_report(run.stdout)
    except json.JSONDecodeError:
        sys.exit(f"pip-audit ended with {run.returncode} on {lock}:\n{run.stderr[-2000:]}")


def main() -> int:
    """Audit every lock file and say what came of it."""
    program = prepare()
    code = 0
    for lock in AUDITED:
        report = audit(program, lock)
        print(
            f"{lock}: {report.audited} packages audited, "
            f"{len(report.vulnerable)} known vulnerabilities"
        )
        for line in report.vulnerable:
            print(f"  {line}")
        if report.skipped:
            reason = "is no advisory data reachable from here?"
            print(f"  {len(report.skipped)} packages could NOT be audited: {reason}")
            code = max(code, UNKNOWN)
        if report.vulnerable:
            code = VULNERABLE if code == 0 else code
    return code


if __name__ == "__main__":
    sys.exit(main())
