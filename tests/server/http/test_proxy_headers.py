"""Which headers show a proxy."""

from __future__ import annotations

import boto3
import pytest
from botocore.awsrequest import AWSRequest
from botocore.config import Config

from millrace.server.http.proxy_headers import is_of_proxy, is_of_sdk

PROXIES = """
ali-cdn-real-ip akamai-origin-hop cdn-loop cf-connecting-ip cf-ray client-ip
cloudfront-viewer-address do-connecting-ip fastly-client-ip fastly-ssl fly-client-ip fly-region
forwarded forwarded-for front-end-https http-client-ip http-x-forwarded-for incap-client-ip
ngrok-trace-id proxy-authorization proxy-client-ip proxy-connection remote-user ssl-client-cert
tailscale-user-login true-client-ip via wl-proxy-client-ip wl-proxy-ssl x-amz-cf-id
x-amzn-apigateway-api-id x-amzn-mtls-clientcert x-amzn-oidc-data x-amzn-tls-version
x-amzn-trace-id x-appengine-user-ip x-arr-log-id x-auth-request-user x-azure-clientip
x-azure-socketip x-bluecoat-via x-client-cert x-client-ip x-cloud-trace-context
x-cluster-client-ip x-envoy-external-address x-forwarded x-forwarded-for x-forwarded-port
x-forwarded-proto x-forwarded-server x-goog-authenticated-user-email x-host x-ingress-path
x-nf-client-connection-ip x-nginx-proxy x-original-forwarded-for x-original-url
x-originating-ip x-proxyuser-ip x-real-ip x-real-port x-remote-addr x-remote-ip x-remote-user
x-request-start x-rewrite-url x-scheme x-ssl-client-cert x-ssl-client-verify x-sucuri-clientip
x-url-scheme x-varnish x-vercel-forwarded-for x-vercel-id
"""

CLIENTS = """
accept accept-encoding accept-language amz-sdk-invocation-id amz-sdk-request authorization
cache-control connection content-length content-md5 content-type cookie dnt expect host if-match
idempotency-key last-event-id origin pragma priority range referer sec-fetch-mode te traceparent
tracestate transfer-encoding upgrade user-agent x-amz-content-sha256 x-amz-date
x-amz-security-token x-amz-target x-amz-user-agent x-amzn-query-mode x-cassieq-request-time
x-correlation-id x-request-id x-requested-with
"""


@pytest.mark.parametrize("name", PROXIES.split())
def test_sec_21_a_header_of_a_proxy_is_known(name: str) -> None:
    assert is_of_proxy(name)


@pytest.mark.parametrize("name", CLIENTS.split())
def test_a_header_of_a_client_is_none_of_a_proxy(name: str) -> None:
    assert not is_of_proxy(name)


def test_no_header_of_boto3_is_one_of_a_proxy() -> None:
    sent: list[str] = []

    def see(request: AWSRequest, **_: object) -> None:
        sent.extend(name.lower() for name in request.headers)
        raise ConnectionError("nothing is sent")

    config = Config(retries={"total_max_attempts": 1})
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
    for service in ("sqs", "sns", "sts"):
        client = boto3.client(service, config=config, **keys)  # type: ignore[call-overload]
        client.meta.events.register("before-send", see)
        asks = {"sqs": "list_queues", "sns": "list_topics", "sts": "get_caller_identity"}
        with pytest.raises(ConnectionError):
            getattr(client, asks[service])()
    assert "x-amz-date" in sent
    assert not list(filter(is_of_proxy, sent))


@pytest.mark.parametrize(
    ("trace_id", "is_sdk"),
    [
        ("Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1", True),
        ("Root=1-67891233-abcdef012345678912345678", False),
        ("Self=1-67891234-12456789abcdef012345678;Root=1-6789;Parent=5399;Sampled=1", False),
        ("", False),
        ("x", False),
    ],
)
def test_a_trace_of_an_sdk_is_told_from_one_of_a_load_balancer(
    trace_id: str, *, is_sdk: bool
) -> None:
    assert is_of_sdk(trace_id) is is_sdk
