"""One server for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.aws.site import AwsSite


@pytest.fixture(scope="module")
def site(starts_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsSite]:
    with AwsSite(tmp_path_factory.mktemp("integration")) as found:
        yield found
