"""Who is logged in on the status page: a signed cookie made from the site's secret, and a token against forgery.

The cookie is HttpOnly and SameSite=Strict; whoever acts by it must also send the token, which another site's page
cannot read. There is nothing to store: sessions end with the secret that they were begun under.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping

from itsdangerous import BadData, URLSafeTimedSerializer

from holdfast.errors import UnauthorizedError
from holdfast.models.base import Frozen
from holdfast.secret import Keys, keys

LIFE_S = 12 * 3600
CSRF_HEADER = "x-holdfast-csrf"
SAFE_METHODS = frozenset({"GET", "HEAD"})
_SALT = "holdfast status page"


class ForgedError(UnauthorizedError):
    """The request has the cookie but not the token: it may come from another site's page."""

    status = 403


class Session(Frozen):
    """One login."""

    by: str
    """The name that the person gave."""
    csrf: str
    """What requests that change something carry in the header ``X-Holdfast-CSRF``."""


class Sessions:
    """Makes and reads the cookies of one gateway."""

    def __init__(self, secret: str | Keys, port: int) -> None:
        self._secret = keys(secret)
        # Cookies are shared by all ports of a host, where a second site may run.
        self.cookie = f"holdfast_session_{port}"

    def login(self, secret: str, by: str) -> tuple[str, Session]:
        """The cookie's value and the session.

        Raises:
            UnauthorizedError: the secret is wrong.
        """
        if not self._secret.accepts(secret.strip()):
            raise UnauthorizedError("wrong secret: it is the content of the secret file (`.holdfast/secret`)")
        session = Session(by=by, csrf=secrets.token_urlsafe(24))
        return self._signer().dumps([session.by, session.csrf]), session

    def _signer(self) -> URLSafeTimedSerializer:
        # Signs with the last, takes all.
        return URLSafeTimedSerializer(list(reversed(self._secret.all)), salt=_SALT)

    def read(self, cookie: str | None) -> Session | None:
        """The session of a cookie; None: it is missing, forged, or too old."""
        if not cookie:
            return None
        try:
            by, csrf = self._signer().loads(cookie, max_age=LIFE_S)
        except (BadData, ValueError, TypeError):
            return None
        return Session(by=by, csrf=csrf)


def must_not_be_forged(session: Session, method: str, headers: Mapping[str, str]) -> None:
    """Refuse what a page of another site could send.

    Raises:
        ForgedError: it changes something and does not carry the token.
    """
    token = headers.get(CSRF_HEADER, "")
    if method not in SAFE_METHODS and not hmac.compare_digest(token.encode(), session.csrf.encode()):
        raise ForgedError("the request does not carry this login's token: reload the page")
