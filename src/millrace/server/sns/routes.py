"""The unsigned HTTP routes of SNS: signing certificate and subscription confirmation."""

from __future__ import annotations

from millrace.errors import NotFound
from millrace.server.aws.api_protocol import (
    NAMESPACES,
    XML,
    AwsApi,
    request_id,
)
from millrace.server.aws.names import arn_of, home_of
from millrace.server.aws.query_protocol import text_of
from millrace.server.http.response import Response
from millrace.server.sns.confirmation import confirm
from millrace.server.sns.endpoint_delivery import CONFIRM_PATH
from millrace.server.sns.signing import CERTIFICATE_PATH
from millrace.server.sns.state import state_of
from millrace.server.web.route import RequestContext, Routes

ROUTES = Routes("aws")


def _face(ask: RequestContext) -> AwsApi:
    face = ask.server.face("aws")
    assert isinstance(face, AwsApi)
    return face


@ROUTES.raw("GET", CONFIRM_PATH, "public")
async def confirm_endpoint(ask: RequestContext) -> Response:
    """Confirm a subscription with the token in the query."""
    face = _face(ask)
    space, topic, name = await confirm(ask, face, ask.query().get("Token", ""))
    home = home_of(space, face.usual) or face.usual
    arn = text_of(f"{arn_of('sns', home, topic)}:{name}")
    text = (
        f'<ConfirmSubscriptionResponse xmlns="{NAMESPACES["sns"]}"><ConfirmSubscriptionResult>'
        f"<SubscriptionArn>{arn}</SubscriptionArn></ConfirmSubscriptionResult><ResponseMetadata>"
        f"<RequestId>{request_id()}</RequestId></ResponseMetadata></ConfirmSubscriptionResponse>"
    )
    return Response(200, text.encode(), type=XML)


@ROUTES.raw("GET", f"{CERTIFICATE_PATH}{{file}}", "public")
async def certificate(ask: RequestContext) -> Response:
    """Return the certificate that verifies the signatures of messages."""
    exchange = state_of(_face(ask)).topics
    # Callers are anonymous here: no key is created for them.
    signer = await exchange.prepare() if exchange.has_key else None
    if signer is None or ask.params["file"] != signer.name:
        raise NotFound("there is no such certificate", field="path")
    return Response(200, signer.certificate.encode(), type="application/x-pem-file")
