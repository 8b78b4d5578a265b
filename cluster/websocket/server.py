"""EnvironmentServer: serves environments to trainers; `gymnast serve environments` runs it."""

from __future__ import annotations

import asyncio
import hmac
import logging
import signal
import weakref
from typing import Any

from aiohttp import WSMsgType, web

from gymnast import __version__

from ...envs.registry import EnvironmentSource
from ...sandbox.cancellation import finish
from ..hosting.caught_errors import CaughtError
from ..hosting.host import EnvironmentHost
from .wire import MAX_BYTES, from_text, to_text

TOKEN_VARIABLE = "GYMNAST_CLUSTER_TOKEN"
HEARTBEAT_SECONDS = 15.0  # between two pings; a trainer that does not answer one in half that time is gone
METHODS = frozenset({"open", "reset", "step", "grade", "close"})

logger = logging.getLogger("gymnast.cluster")


async def serve(environment: Any, *, token: str, host: str, port: int) -> None:
    """Serve an environment until Ctrl-C or SIGTERM, which close all environments."""
    server = EnvironmentServer(environment, token=token)
    logger.info("serving on ws://%s:%d", host, await server.start(host, port))
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    await server.close()


class EnvironmentServer:
    """Answers the calls of trainers who know the token. Each connection has its own environments, which end with it."""

    def __init__(self, environment: Any, *, token: str, heartbeat: float = HEARTBEAT_SECONDS) -> None:
        self._source = EnvironmentSource.of(environment)
        self._names = sorted(map(str, environment)) if isinstance(environment, dict) else [None]
        self._token = token.encode()
        self._heartbeat = heartbeat
        self._sockets: weakref.WeakSet[web.WebSocketResponse] = weakref.WeakSet()
        application = web.Application(middlewares=[self._check_token])
        application.add_routes([web.get("/facts", self._facts), web.get("/calls", self._calls)])
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self, host: str, port: int) -> int:
        """Begin to serve, and return the port; 0 takes any free one."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return self._runner.addresses[0][1]

    async def close(self) -> None:
        """End all connections, and close their environments."""
        for socket in list(self._sockets):
            await socket.close()
        await self._runner.cleanup()

    @web.middleware
    async def _check_token(self, request: web.Request, handler: Any) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode(errors="surrogateescape")
        if not hmac.compare_digest(given, self._token):
            logger.warning("refused %s, which has another token", request.remote)
            raise web.HTTPUnauthorized(text="another token")
        return await handler(request)

    async def _facts(self, request: web.Request) -> web.Response:
        return web.json_response({"version": __version__, "environments": self._names})

    async def _calls(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(heartbeat=self._heartbeat, max_msg_size=MAX_BYTES, compress=False)
        await socket.prepare(request)
        self._sockets.add(socket)
        logger.info("%s is connected", request.remote)
        host = EnvironmentHost(self._source)
        answers: set[asyncio.Task[None]] = set()
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    break
                answer = asyncio.create_task(_answer(host, socket, message.data))
                answers.add(answer)
                answer.add_done_callback(answers.discard)
        finally:
            await finish(host.close())
            if answers:
                await finish(asyncio.wait(answers))
            logger.info("%s is gone", request.remote)
        return socket


async def _answer(host: EnvironmentHost, socket: web.WebSocketResponse, text: str) -> None:
    try:
        message = from_text(text)
        number, method, episode, arguments = (message[name] for name in ("number", "method", "episode", "arguments"))
        if method not in METHODS:
            raise ValueError(f"unknown method {method!r}")
    except (ValueError, TypeError, KeyError) as error:
        logger.warning("a trainer sent no message of ours, and is hung up on: %s", error)
        await socket.close(code=1003, message=b"not a message of gymnast")
        return
    result = await host.call(method, episode, *arguments)
    try:
        reply = to_text({"number": number, "result": result})
    except (TypeError, ValueError) as error:
        reply = to_text({"number": number, "result": CaughtError.of(error)})
    if not socket.closed:
        try:
            await socket.send_str(reply)
        except ConnectionError:
            return  # the trainer is gone, and with it the need for an answer
