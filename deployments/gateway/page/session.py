"""Sessions of the status page: a signed cookie made from the site's secret, and a token against forgery.

The cookie is HttpOnly and SameSite=Strict; a request that acts by it must also send the token, which another site's
page cannot read. Only logouts are stored, in the audit; sessions also end with the secret that they were begun under.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping

from itsdangerous import BadData, URLSafeTimedSerializer

from holdfast.errors import UnauthorizedError
from holdfast.models.base import Frozen
from holdfast.secret import Keys, keys

CSRF_HEADER = "x-holdfast-csrf"
SAFE_METHODS = frozenset({"GET", "HEAD"})
MAY = re.compile(r"/v1/machines/[^/]+/(evict|release)|/v1/incidents/[^/]+/approve|/ui/logout")
"""Paths by which a login may change something. All else needs the secret."""
_SALT = "holdfast status page"


class NotByLoginError(UnauthorizedError):
    """A login of the status page may not do that."""

    status = 403


class ForgedError(UnauthorizedError):
    """The request has the cookie but not the token: it may come from another site's page."""

    status = 403


class LoginSession(Frozen):
    """One login."""

    by: str
    """The name that the person gave."""
    id: str
    """Identifies the session; not secret."""
    csrf: str
    """Token that requests that change something carry in the header ``X-Holdfast-CSRF``."""


class Sessions:
    """Makes and reads the cookies of one gateway."""

    def __init__(self, secret: str | Keys, port: int, life_s: float) -> None:
        self.life_s = int(life_s)
        self._secret = keys(secret)
        # Cookies are shared by all ports of a host, where a second site may run.
        self.cookie = f"holdfast_session_{port}"
        self._ended: set[str] = set()

    def login(self, secret: str, by: str) -> tuple[str, LoginSession]:
        """Return the cookie's value and the session.

        Raises:
            UnauthorizedError: the secret is wrong.
        """
        if not self._secret.accepts(secret.strip()):
            raise UnauthorizedError("wrong secret: it is the content of the secret file (`.holdfast/secret`)")
        session = LoginSession(by=by, id=secrets.token_hex(8), csrf=secrets.token_urlsafe(24))
        return self._signer().dumps([session.by, session.id, session.csrf]), session

    def end(self, *ids: str) -> None:
        """Refuse the cookies of these sessions from now on."""
        self._ended.update(ids)

    def _signer(self) -> URLSafeTimedSerializer:
        # Signs with the last, takes all.
        return URLSafeTimedSerializer(list(reversed(self._secret.all)), salt=_SALT)

    def read(self, cookie: str | None) -> LoginSession | None:
        """Return the session of a cookie; None: it is missing, forged, too old, or its session was logged out."""
        if not cookie:
            return None
        try:
            by, number, csrf = self._signer().loads(cookie, max_age=self.life_s)
        except (BadData, ValueError, TypeError):
            return None
        return None if number in self._ended else LoginSession(by=by, id=number, csrf=csrf)


def must_be_of_the_page(method: str, path: str) -> None:
    """Refuse what the page has no button for: its cookie is easier to lose than the secret.

    Raises:
        NotByLoginError: it changes something else than the page does.
    """
    if method not in SAFE_METHODS and not MAY.fullmatch(path):
        raise NotByLoginError(
            "a login of the status page may evict, release and approve: use the command line, or send the secret"
        )


def must_not_be_forged(session: LoginSession, method: str, headers: Mapping[str, str]) -> None:
    """Refuse what a page of another site could send.

    Raises:
        ForgedError: it changes something and does not carry the token.
    """
    token = headers.get(CSRF_HEADER, "")
    if method not in SAFE_METHODS and not hmac.compare_digest(token.encode(), session.csrf.encode()):
        raise ForgedError("the request does not carry this login's token: reload the page")
