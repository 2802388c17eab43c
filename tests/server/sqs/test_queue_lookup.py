"""Where queues are: accounts and regions by access key, and addresses by whichever host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

from tests.server.aws.site import ACCOUNT, REGION, Aws, AwsSite, Key, run
from tests.server.sqs.codes import code_of

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

OTHER = "111122223333"


@pytest.fixture
def other(site: AwsSite, name: str) -> Aws:
    """One whose key is of another account."""
    rules = ("--rule", f"allow * {OTHER}.*/*")
    run("user", "add", name, *rules, "--data", site.folder)
    made = run("key", "new", name, "--account", OTHER, "--data", site.folder)
    return site.aws(Key(str(made["id"]), str(made["secret"])))


def test_a_key_asks_in_its_account(site: AwsSite, sqs: SQSClient, other: Aws, name: str) -> None:
    url = other.sqs.create_queue(QueueName=name)["QueueUrl"]
    assert urlsplit(url).path == f"/{OTHER}/{name}"
    found = other.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    assert found["Attributes"]["QueueArn"] == f"arn:aws:sqs:{REGION}:{OTHER}:{name}"
    assert other.sts.get_caller_identity()["Account"] == OTHER
    space = f"{OTHER}.{REGION}"
    assert site.process.ask("GET", f"/v1/spaces/{space}/queues/{name}").status == 200
    # Whoever may there finds it by the account's number, and not without.
    with pytest.raises(ClientError) as error:
        sqs.get_queue_url(QueueName=name)
    assert code_of(error)[0] == "AWS.SimpleQueueService.NonExistentQueue"
    assert sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=OTHER)["QueueUrl"] == url
    sqs.send_message(QueueUrl=url, MessageBody="from afar")
    [got] = other.sqs.receive_message(QueueUrl=url)["Messages"]
    assert got["Body"] == "from afar"


def test_the_account_of_another_is_not_for_everybody(other: Aws, name: str, url: str) -> None:
    for ask in (
        lambda: other.sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=ACCOUNT),
        lambda: other.sqs.send_message(QueueUrl=url, MessageBody="x"),
    ):
        with pytest.raises(ClientError) as error:
            ask()
        assert code_of(error)[0] in (
            "AWS.SimpleQueueService.NonExistentQueue",
            "AccessDenied",
        )
    with pytest.raises(ClientError) as error:
        other.sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId="twelve")
    assert code_of(error) == ("InvalidParameterValue", 400)


@pytest.mark.process
def test_a_key_that_is_an_account_asks_there_where_none_is_needed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("anonymous")
    with AwsSite(folder, "--set", "anonymous=true") as site:
        mine = site.aws(Key(OTHER, "whatever"))
        assert urlsplit(mine.sqs.create_queue(QueueName="a")["QueueUrl"]).path == f"/{OTHER}/a"
        assert "QueueUrls" not in site.aws(Key("test", "test")).sqs.list_queues()
        assert "QueueUrls" not in site.aws(Key(OTHER, "whatever"), "eu-west-1").sqs.list_queues()


@pytest.mark.process
@pytest.mark.parametrize(
    ("trace_id", "is_let_in"),
    [
        ("Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1", True),
        ("Root=1-5759e988-bd862e3fe1be46a994272793", False),
    ],
)
def test_sec_21_inside_lambda_no_key_is_needed_and_behind_a_load_balancer_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace_id: str, *, is_let_in: bool
) -> None:
    """The SDK sends the trace of the function that runs it, as load balancers send theirs."""
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "f")
    monkeypatch.setenv("_X_AMZN_TRACE_ID", trace_id)
    with AwsSite(tmp_path, "--set", "anonymous=true") as site:
        mine = site.aws(Key(OTHER, "whatever")).sqs
        if is_let_in:
            assert "QueueUrls" not in mine.list_queues()
            return
        with pytest.raises(ClientError) as error:
            mine.list_queues()
        assert code_of(error)[1] == 403


def test_an_address_echoes_the_host_and_is_found_under_any(
    site: AwsSite, sqs: SQSClient, name: str
) -> None:
    port = site.process.port
    named = Aws(f"http://localhost:{port}", site.root).sqs
    url = named.create_queue(QueueName=name)["QueueUrl"]
    assert url == f"http://localhost:{port}/{ACCOUNT}/{name}"
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == f"{site.url}/{ACCOUNT}/{name}"
    [listed] = named.list_queues(QueueNamePrefix=name)["QueueUrls"]
    assert listed == url
    hosts = ("https://sqs.us-east-1.amazonaws.com", "http://queue.localhost:1", "")
    paths = (f"/{ACCOUNT}/{name}", f"/queue/{REGION}/{ACCOUNT}/{name}")
    for place in [host + path for host in hosts for path in paths]:
        sqs.send_message(QueueUrl=place, MessageBody=place)
        [got] = sqs.receive_message(QueueUrl=place)["Messages"]
        assert got["Body"] == place
        sqs.delete_message(QueueUrl=place, ReceiptHandle=got["ReceiptHandle"])


def test_what_is_no_address_of_a_queue_is_told(sqs: SQSClient) -> None:
    for bad in ("http://127.0.0.1/", "http://127.0.0.1/a/b/c/d", "nothing"):
        with pytest.raises(ClientError) as error:
            sqs.send_message(QueueUrl=bad, MessageBody="x")
        assert code_of(error) == ("AWS.SimpleQueueService.NonExistentQueue", 400), bad


def test_every_action_tells_of_a_queue_that_is_not_there(sqs: SQSClient, url: str) -> None:
    gone = f"{url}-gone"
    receipt = "x"
    asks: dict[str, Callable[[], Any]] = {
        "TagQueue": lambda: sqs.tag_queue(QueueUrl=gone, Tags={"a": "b"}),
        "UntagQueue": lambda: sqs.untag_queue(QueueUrl=gone, TagKeys=["a"]),
        "ListQueueTags": lambda: sqs.list_queue_tags(QueueUrl=gone),
        "AddPermission": lambda: sqs.add_permission(
            QueueUrl=gone, Label="l", AWSAccountIds=[ACCOUNT], Actions=["SendMessage"]
        ),
        "RemovePermission": lambda: sqs.remove_permission(QueueUrl=gone, Label="l"),
        "GetQueueAttributes": lambda: sqs.get_queue_attributes(QueueUrl=gone),
        "SetQueueAttributes": lambda: sqs.set_queue_attributes(
            QueueUrl=gone, Attributes={"DelaySeconds": "1"}
        ),
        "DeleteQueue": lambda: sqs.delete_queue(QueueUrl=gone),
        "PurgeQueue": lambda: sqs.purge_queue(QueueUrl=gone),
        "ListDeadLetterSourceQueues": lambda: sqs.list_dead_letter_source_queues(QueueUrl=gone),
        "SendMessage": lambda: sqs.send_message(QueueUrl=gone, MessageBody="x"),
        "SendMessageBatch": lambda: sqs.send_message_batch(
            QueueUrl=gone, Entries=[{"Id": "a", "MessageBody": "x"}]
        ),
        "ReceiveMessage": lambda: sqs.receive_message(QueueUrl=gone),
        "DeleteMessage": lambda: sqs.delete_message(QueueUrl=gone, ReceiptHandle=receipt),
        "DeleteMessageBatch": lambda: sqs.delete_message_batch(
            QueueUrl=gone, Entries=[{"Id": "a", "ReceiptHandle": receipt}]
        ),
        "ChangeMessageVisibility": lambda: sqs.change_message_visibility(
            QueueUrl=gone, ReceiptHandle=receipt, VisibilityTimeout=1
        ),
        "ChangeMessageVisibilityBatch": lambda: sqs.change_message_visibility_batch(
            QueueUrl=gone, Entries=[{"Id": "a", "ReceiptHandle": receipt, "VisibilityTimeout": 1}]
        ),
    }
    for action, ask in asks.items():
        with pytest.raises(ClientError) as error:
            ask()
        code = "AWS.SimpleQueueService.NonExistentQueue"
        assert (action, code_of(error)) == (action, (code, 400))
