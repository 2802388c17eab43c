"""Who guesses at a secret is held up, and nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.server.aws.site import AwsSite, Key
from tests.server.sqs.codes import code_of


def test_wrong_signatures_are_answered_so_often(tmp_path: Path) -> None:
    with AwsSite(tmp_path) as site:
        thief = site.aws(Key(site.root.id, "guessed")).sqs
        codes: list[str] = []
        for _ in range(20):
            with pytest.raises(ClientError) as error:
                thief.list_queues()
            codes.append(code_of(error)[0])
        assert codes[0] == "SignatureDoesNotMatch"
        assert codes[-1] == "Throttling"
        assert site.aws().sqs.list_queues()["ResponseMetadata"]["HTTPStatusCode"] == 200
