"""Who guesses at a secret is held up, and nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from millrace import limits
from tests.server.aws.site import AwsSite, Key
from tests.server.sqs.codes import code_of

pytestmark = pytest.mark.process


def test_wrong_signatures_are_answered_so_often(tmp_path: Path) -> None:
    with AwsSite(tmp_path) as site:
        thief = site.aws(Key(site.root.id, "guessed")).sqs
        codes, said = ["SignatureDoesNotMatch"], ""
        while codes[-1] == "SignatureDoesNotMatch":
            with pytest.raises(ClientError) as error:
                thief.list_queues()
            codes.append(code_of(error)[0])
            said = str(error.value)
        assert codes[-1] == "Throttling"
        assert "no token or key that is known" in said
        # The first one was not asked for, and the last one was not answered.
        assert len(codes) - 2 >= limits.FAILURES_BURST, "each of them is counted once"
        assert site.aws().sqs.list_queues()["ResponseMetadata"]["HTTPStatusCode"] == 200
