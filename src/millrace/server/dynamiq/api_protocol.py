"""Authentication and error responses of Dynamiq's API.

Dynamiq had no authentication. Here its callers authenticate as those of the native API do, and
unauthenticated requests get the native response, so that its text does not reveal which addresses
exist.
"""

from __future__ import annotations

from millrace.errors import MillraceError
from millrace.server.dynamiq.schemas import TEXT_ERRORS, error_out
from millrace.server.http.parser import Request
from millrace.server.http.response import Response
from millrace.server.web.api_protocol import NativeApi
from millrace.server.web.route import RequestContext

_UNPROCESSABLE = 422
"""The one status that Dynamiq has for invalid requests and for conflicts with the present state."""


class DynamiqApi(NativeApi):
    """Dynamiq's API protocol: native authentication, errors in Dynamiq's form."""

    def answer_error(self, request: Request, error: MillraceError) -> Response:
        own = super().answer_error(request, error)
        if error.field == "authorization":
            return own
        ask = request.context
        is_text = (
            isinstance(ask, RequestContext) and (ask.route.method, ask.route.path) in TEXT_ERRORS
        )
        is_wrong = own.status in (400, 409, 410) or (own.status == 413 and error.field != "body")
        status = _UNPROCESSABLE if is_wrong else own.status
        after = own.headers.get("retry-after")
        headers = {} if after is None else {"retry-after": after}
        return Response(status, error_out(error.message, is_text=is_text), headers=headers)
