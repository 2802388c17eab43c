"""What is asked for without a signature: the certificate, and the yes of an endpoint."""

from __future__ import annotations

from millrace.errors import NotFound
from millrace.server.aws.face import NAMESPACES, XML, AwsFace, request_id
from millrace.server.aws.form import text_of
from millrace.server.aws.names import arn_of, home_of
from millrace.server.http.response import Response
from millrace.server.rest.route import Ask, Routes
from millrace.server.sns.confirm import confirm
from millrace.server.sns.deliver import CONFIRM_PATH
from millrace.server.sns.signing import CERTIFICATE_PATH

ROUTES = Routes("aws")


def _face(ask: Ask) -> AwsFace:
    face = ask.server.face("aws")
    assert isinstance(face, AwsFace)
    return face


@ROUTES.raw("GET", CONFIRM_PATH, "public")
async def confirm_endpoint(ask: Ask) -> Response:
    """Have an endpoint get what its topic has: its owner shows what it was told."""
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
async def certificate(ask: Ask) -> Response:
    """The certificate by which signatures of messages are verified."""
    exchange = _face(ask).exchange
    # Nobody need be known to ask: a key is not made for that.
    signer = await exchange.prepare() if exchange.has_key else None
    if signer is None or ask.params["file"] != signer.name:
        raise NotFound("there is no such certificate", field="path")
    return Response(200, signer.certificate.encode(), type="application/x-pem-file")
