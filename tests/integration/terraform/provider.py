"""Terraform's AWS provider, built from its source, cut to the services that are asked here.

Whole, it takes an hour and more memory than a small machine has; cut, a minute or two. What is left
is as it was: two generated files, which list the services and their clients, are made shorter.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import msgspec

from tests.services.cache import cached
from tests.services.missing import Missing
from tests.services.packages import have_program

MODULE = "github.com/upbound/terraform-provider-aws"
"""Its source as Go can fetch it: a fork that adds a package. Of HashiCorp's own module, Go knows no
version since 1.60."""
VERSION = "v0.0.0-20260305123303-f7691456b787"
SUM = "h1:dJlp2eNgY/iVKTPINdguYlHbHc9CtXBZKmQmqYq0REs="
RELEASE = "6.34.0"

SERVICES = frozenset({"iam", "sns", "sqs", "sts"})
CLIENTS = SERVICES | {"s3"}
"""That of S3 is named by what all services share."""

PACKAGES_FILE = "internal/provider/sdkv2/service_packages_gen.go"
CLIENTS_FILE = "internal/conns/awsclient_gen.go"
_PACKAGE = re.compile(r'\t"[^"]+/internal/service/(\w+)"$|\t\t(\w+)\.ServicePackage\(ctx\),$')
_CLIENT = re.compile(
    r"\nfunc \(c \*AWSClient\) \w+\(ctx [^)]*\) \*(\w+)\.Client \{\n.*?\n\}\n", re.S
)
_SDK = re.compile(r'\t(?:(\w+) )?"github\.com/aws/aws-sdk-go-v2/service/(\w+)"\n')


class _Fetched(msgspec.Struct, rename="pascal"):
    """What Go tells of a module."""

    dir: str = ""
    sum: str = ""
    error: str = ""


def have_provider() -> Path:
    """A folder of plugins that has it.

    Raises:
        Missing: it cannot be fetched or built.
    """
    return cached(f"terraform-provider-aws-{RELEASE}", _build)


def _build(folder: Path) -> None:
    go = have_program("go", "golang-go")
    source = folder / "source"
    shutil.copytree(_fetch(go, folder), source)
    for path in (source, *source.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)
    cut(source)
    system, machine = (_run(go, folder, "env", name).strip() for name in ("GOOS", "GOARCH"))
    place = folder / "registry.terraform.io" / "hashicorp" / "aws" / RELEASE / f"{system}_{machine}"
    version = f"-X github.com/hashicorp/terraform-provider-aws/version.ProviderVersion={RELEASE}"
    program = place / f"terraform-provider-aws_v{RELEASE}"
    _run(go, source, "build", "-ldflags", f"-s -w {version}", "-o", str(program), ".")
    shutil.rmtree(source)


def _fetch(go: Path, folder: Path) -> Path:
    text = _run(go, folder, "mod", "download", "-json", f"{MODULE}@{VERSION}")
    found = msgspec.json.decode(text, type=_Fetched)
    if found.error or found.sum != SUM:
        raise Missing(f"the source of the provider is not the one that is known: {found}")
    return Path(found.dir)


def _run(go: Path, folder: Path, *words: str) -> str:
    # What the module holds is compared with the sum above; what it needs, with its own sums.
    ended = subprocess.run(
        [go, *words],
        cwd=folder,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GONOSUMDB": MODULE},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise Missing(f"the provider was not built: {ended.stdout[-500:]}{ended.stderr[-2000:]}")
    return ended.stdout


def cut(source: Path) -> None:
    """Leave the services that are asked, and their clients.

    Raises:
        Missing: they are not where they were looked for.
    """
    packages = source / PACKAGES_FILE
    lines = packages.read_text().splitlines()
    packages.write_text("\n".join(line for line in lines if _is_kept(line)) + "\n")
    clients = source / CLIENTS_FILE
    text = clients.read_text()
    made = {found[1] for found in _CLIENT.finditer(text)}
    if not made >= CLIENTS:
        raise Missing(f"the provider has no client of {', '.join(sorted(CLIENTS - made))}")
    text = _CLIENT.sub(lambda found: found[0] if found[1] in CLIENTS else "", text)
    clients.write_text(
        _SDK.sub(lambda found: found[0] if (found[1] or found[2]) in CLIENTS else "", text)
    )


def _is_kept(line: str) -> bool:
    found = _PACKAGE.match(line)
    return found is None or (found[1] or found[2]) in SERVICES
