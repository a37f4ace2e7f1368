"""Routes of the page itself: its files, login and logout."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field

from holdfast.deployments.gateway.api.audit import audited, who
from holdfast.deployments.gateway.api.sanitize import clean
from holdfast.deployments.gateway.gateway import Gateway
from holdfast.deployments.gateway.page import assets
from holdfast.deployments.gateway.page.session import LoginSession, Sessions
from holdfast.errors import UnauthorizedError, UnknownError
from holdfast.models.base import Frozen


class Login(Frozen):
    """The fields of the login form."""

    secret: str = Field(min_length=1, max_length=500)
    by: str = Field(min_length=1, max_length=100)


async def _nothing() -> None:
    """Do nothing: logging in or out needs no further work."""


def routes(gateway: Gateway, sessions: Sessions) -> APIRouter:
    """Return the routes, for this gateway."""
    router = APIRouter()
    files, ledger = assets.load(), gateway.site.ledger

    async def _note(request: Request, session: LoginSession, act: str) -> None:
        asked = who(request, session.by).asks(act, session.id).model_copy(update={"via": "page"})
        await audited(gateway.site, asked, _nothing, lambda _: "")

    async def ended() -> None:
        since = gateway.site.clock.now() - sessions.life_s
        sessions.end(*await asyncio.to_thread(ledger.targets_by_hand, "logout", since))

    gateway.resuming.append(ended)

    @router.get("/")
    async def root() -> Response:
        return RedirectResponse("/ui/")

    @router.post("/ui/login")
    async def login(request: Request, body: Login, response: Response) -> LoginSession:
        try:
            cookie, session = sessions.login(body.secret, clean(body.by).strip() or "an unnamed person")
        except UnauthorizedError:
            gateway.site.metrics.unauthorized.labels("ui").inc()
            raise
        await _note(request, session, "login")
        response.set_cookie(
            sessions.cookie,
            cookie,
            max_age=sessions.life_s,
            path="/",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return session

    @router.post("/ui/logout")
    async def logout(request: Request, response: Response) -> dict[str, bool]:
        if session := getattr(request.state, "session", None):
            # First here, whatever the ledger does; another gateway that leads later reads it there.
            sessions.end(session.id)
            await _note(request, session, "logout")
        response.delete_cookie(sessions.cookie, path="/", httponly=True, samesite="strict")
        return {"ok": True}

    @router.get("/ui/session")
    async def session(request: Request) -> LoginSession:
        found = sessions.read(request.cookies.get(sessions.cookie))
        if found is None:
            raise UnauthorizedError("not logged in")
        return found

    @router.get("/ui/{path:path}")
    async def file(request: Request, path: str) -> Response:
        asset = files.get(path or "index.html")
        if asset is None:
            raise UnknownError("the status page has no such file")
        headers = assets.SECURITY | {"ETag": asset.etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == asset.etag:
            return Response(status_code=304, headers=headers)
        return Response(asset.body, media_type=asset.media_type, headers=headers)

    return router
