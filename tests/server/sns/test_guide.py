"""The program of the page on SNS runs, and gets what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.server.aws.site import AwsSite

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "sns.md"


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    [program] = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    with AwsSite(tmp_path / "data") as site:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={
                **os.environ,
                "AWS_ENDPOINT_URL": site.url,
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": site.root.id,
                "AWS_SECRET_ACCESS_KEY": site.root.secret,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["Type"], told["Message"], told["Subject"]) == (
        "Notification",
        "100 hammers",
        "order",
    )
