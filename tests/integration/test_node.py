"""The AWS SDK for JavaScript, and sqs-consumer, on Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tests.integration.environments import NODE, have_node
from tests.server.aws.site import AwsSite
from tests.services.packages import have_program
from tests.support.timeouts import scaled


def test_the_sdk_for_javascript(site: AwsSite, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(have_node())
    shutil.copy(NODE / "round.mjs", tmp_path)
    node = have_program("node", "nodejs")
    ended = subprocess.run(
        [str(node), "round.mjs", site.url, site.root.id, site.root.secret],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(200),
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "tags": {"c": "é"},
        "sent": ["1", "2", "3"],
        "bodies": ["1", "2", "3", "é ☃ <&>\r\n"],
        "bytes": [0, 255],
        "again": True,
        "deleted": 3,
        "left": "0",
        "listed": True,
        "refused": True,
        "code": "QueueDoesNotExist",
        "consumed": list(range(12)),
        "failures": 1,
        "published": ["one é", "two"],
    }
