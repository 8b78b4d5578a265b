"""The page of a run that still grows, or of several, served on this machine only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from ...records.files.run import Run
from ...records.files.run_files import IMAGES
from .index import to_json
from .page import chunk, served_index, served_page
from .runs import Runs

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "frame-ancestors 'none'",
}
CLOSE_SECONDS = 1.0  # for answers that a browser is slow to take


async def serve_page(shown: Run | Runs, port: int, started: Callable[[str], object]) -> None:
    """Serve the page of a run, or of several with their own ones, until this is cancelled.

    Port 0 is any free one; `started` is called with the page's URL.
    """

    def find(request: web.Request) -> Run | Runs:
        name = request.match_info["name"].rstrip("/")
        found = shown.found.get(name) if isinstance(shown, Runs) and name else None if name else shown
        if found is None:
            raise web.HTTPNotFound(text=f"there is no run {name}")
        return found

    async def show(request: web.Request) -> web.Response:
        found = find(request)
        found.read()
        return web.Response(text=served_page(found), content_type="text/html", headers=HEADERS)

    async def index(request: web.Request) -> web.Response:
        found = find(request)
        found.read()
        if request.query.get("since") == str(found.changes):
            return web.Response(status=204)
        return web.json_response(text=to_json(served_index(found)), headers=HEADERS)

    async def episodes(request: web.Request) -> web.Response:
        found = find(request)
        if isinstance(found, Runs):
            raise web.HTTPNotFound(text="several runs have no episodes of their own")
        body = chunk(found, int(request.match_info["number"]))
        return web.Response(body=body, content_type="application/json", headers=HEADERS)

    async def picture(request: web.Request) -> web.FileResponse:
        return web.FileResponse(find(request).folder / IMAGES / request.match_info["file"], headers=HEADERS)

    application = web.Application(middlewares=[_refuse_other_sites])
    run = "/{name:(?:.+/)?}"
    application.add_routes(
        [web.get(run, show), web.get(run + "index", index), web.get(run + r"chunk/{number:\d+}", episodes)]
    )
    application.add_routes([web.get(run + IMAGES + r"/{file:[0-9a-f]{64}\.[a-z]+}", picture)])
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=CLOSE_SECONDS)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        started(f"http://127.0.0.1:{runner.addresses[0][1]}/")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


@web.middleware
async def _refuse_other_sites(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse what a web page of another site may send here, which must not read a run.

    A request must name this server as its host (else a name that points to 127.0.0.1 could reach it), and must not come
    from another origin.
    """
    assert request.transport is not None
    port = request.transport.get_extra_info("sockname")[1]
    own = request.host in (f"127.0.0.1:{port}", f"localhost:{port}")
    same_origin = request.headers.get("Origin") in (None, f"http://{request.host}")
    if not (own and same_origin and request.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")):
        raise web.HTTPForbidden(text="another host or origin")
    return await handler(request)
