"""The live server: pages and server-sent events over the files of a run. Reads only; needs the extra `live`."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from stayfinite.report.html.page import render_list
from stayfinite.report.html.words import figure
from stayfinite.report.live.channel import Channel
from stayfinite.report.record.folder import INCIDENTS, is_run_folder, runs_in
from stayfinite.report.record.lines import last_step_line, record_time

_COOKIE = "stayfinite"
_LISTED = 200
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


class LiveServer:
    """A run folder, or a folder of runs; either may appear later."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # whether the server is about to end: streams end with it
        self.ends: Callable[[], bool] = lambda: False
        self._channels: dict[Path, Channel] = {}

    def app(self, token: str | None, hosts: list[str]) -> ASGIApp:
        middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=hosts)] if hosts else []
        routes = [
            Route("/", self.front),
            Route("/events", self.events),
            Route("/run/{name}", self.run),
            Route("/run/{name}/events", self.events),
        ]
        inner = Starlette(routes=routes, middleware=middleware)
        return inner if token is None else TokenGate(inner, token)

    async def front(self, request: Request) -> Response:
        if not is_run_folder(self._root) and (runs := await asyncio.to_thread(runs_in, self._root)):
            rows = await asyncio.to_thread(lambda: [_listed(run) for run in runs[:_LISTED]])
            return HTMLResponse(render_list(rows, str(self._root)), headers=_HEADERS)
        return await self._page(self._root, "/events")

    async def run(self, request: Request) -> Response:
        found = self._named(request)
        if found is None:
            return _not_found(self._root)
        return await self._page(found, f"/run/{quote(found.name, safe='')}/events")

    async def events(self, request: Request) -> Response:
        found = self._named(request)
        if found is None:
            return _not_found(self._root)
        return StreamingResponse(
            _stream(self._channel(found)), media_type="text/event-stream", headers=_HEADERS
        )

    def _named(self, request: Request) -> Path | None:
        """The run that the address names; only a folder that is listed can be named."""
        name = request.path_params.get("name")
        return self._root if name is None else next((r for r in runs_in(self._root) if r.name == name), None)

    def _channel(self, run_dir: Path) -> Channel:
        return self._channels.setdefault(run_dir, Channel(run_dir, lambda: self.ends()))

    async def _page(self, run_dir: Path, address: str) -> Response:
        page = await asyncio.to_thread(self._channel(run_dir).follower.page, address)
        return HTMLResponse(page, headers=_HEADERS)


async def _stream(channel: Channel) -> AsyncIterator[str]:
    yield "retry: 1000\n\n"
    async for message in channel.messages():
        yield f"data: {message}\n\n"


def _not_found(root: Path) -> Response:
    return PlainTextResponse(f"There is no such run in {root}.", status_code=404, headers=_HEADERS)


def _listed(run: Path) -> dict[str, str]:
    last = last_step_line(run)
    incidents = sum(1 for path in (run / INCIDENTS).glob("[0-9]*")) if (run / INCIDENTS).is_dir() else 0
    return {
        "name": run.name,
        "address": f"/run/{quote(run.name, safe='')}",
        "written": _ago(record_time(run)),
        "incidents": str(incidents),
        "step": figure(last.get("step")),
        "loss": figure(last.get("loss")),
    }


def _ago(moment: float | None) -> str:
    if moment is None:
        return "–"
    seconds = max(0.0, time.time() - moment)
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "now" if seconds < 10 else f"{int(seconds)} seconds ago"


class TokenGate:
    """Lets in who knows the token: once in the address, from then on by a cookie that scripts cannot read."""

    def __init__(self, inner: ASGIApp, token: str) -> None:
        self._inner = inner
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        request = Request(scope)
        if self._is(request.cookies.get(_COOKIE)) and "token" not in request.query_params:
            await self._inner(scope, receive, send)
        elif self._is(request.query_params.get("token")):
            await self._welcome(request)(scope, receive, send)
        else:
            words = "This page needs its token: open the address that `stayfinite live` printed."
            await PlainTextResponse(words, status_code=403, headers=_HEADERS)(scope, receive, send)

    def _is(self, value: str | None) -> bool:
        return value is not None and hmac.compare_digest(value.encode(), self._token.encode())

    def _welcome(self, request: Request) -> Response:
        """To the same address without the token, so that it stays out of histories."""
        rest: dict[str, Any] = {k: v for k, v in parse_qs(request.url.query).items() if k != "token"}
        address = request.url.path + (f"?{urlencode(rest, doseq=True)}" if rest else "")
        response = RedirectResponse(address, status_code=303, headers=_HEADERS)
        response.set_cookie(_COOKIE, self._token, httponly=True, samesite="strict")
        return response
