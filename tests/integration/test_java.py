"""The AWS SDK for Java."""

from __future__ import annotations

import subprocess

from millrace.spark.java import find_java
from tests.integration.environments import have_java
from tests.server.aws.site import AwsSite
from tests.support.timeouts import scaled


def test_the_sdk_for_java(site: AwsSite) -> None:
    options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8")
    command = [str(find_java().executable), *options, "-cp", have_java(), "Round"]
    ended = subprocess.run(
        [*command, site.url, site.root.id, site.root.secret],
        capture_output=True,
        check=False,
        timeout=scaled(200),
    )
    assert ended.returncode == 0, ended.stderr.decode()
    assert ended.stdout.decode().splitlines() == [
        "tags {c=é}",
        "sent 1 failed 1",
        "bodies [one, é <&>]",
        "left 0",
        "listed 1",
        "refused AWS.SimpleQueueService.NonExistentQueue",
        "refused 404",
        "order [1, 2, 3]",
        "batches 25",
        "published news é",
    ]
