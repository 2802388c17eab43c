"""How callers of Dynamiq's routes are known, and how they are told errors.

Dynamiq knew nobody. Here its callers are known as those of the server's own API are, and whoever
is not known is answered as there, so that nobody learns by the words which addresses there are.
"""

from __future__ import annotations

from millrace.errors import MillraceError
from millrace.server.dynamiq.wire import TEXT_ERRORS, error_out
from millrace.server.http.parser import Request
from millrace.server.http.response import Response
from millrace.server.rest.face import Own
from millrace.server.rest.route import Ask

_UNPROCESSABLE = 422
"""The one status that Dynamiq has for a request that is wrong, or does not fit what is there."""


class Dynamiq(Own):
    """Dynamiq's API."""

    def answer_error(self, request: Request, error: MillraceError) -> Response:
        own = super().answer_error(request, error)
        if error.field == "authorization":
            return own
        ask = request.context
        is_text = isinstance(ask, Ask) and (ask.route.method, ask.route.path) in TEXT_ERRORS
        is_wrong = own.status in (400, 409, 410) or (own.status == 413 and error.field != "body")
        status = _UNPROCESSABLE if is_wrong else own.status
        after = own.headers.get("retry-after")
        headers = {} if after is None else {"retry-after": after}
        return Response(status, error_out(error.message, is_text=is_text), headers=headers)
