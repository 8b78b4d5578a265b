"""A server of OpenAI's protocol that gives the answers of a list, errors among them, and keeps the requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web

USAGE = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25, "prompt_tokens_details": {"cached_tokens": 8}}


def said(content: str = "", *calls: tuple[str, str], reason: str = "stop", **more: Any) -> dict[str, Any]:
    """A completion with this text and these calls."""
    tool_calls = [
        {"id": f"c{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content or None, "tool_calls": tool_calls or None, **more}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": USAGE}


class Refused(NamedTuple):
    """An error, after which the client waits for a moment only."""

    status: int
    message: str = "no"

    def response(self) -> web.Response:
        body = {"error": {"message": self.message, "type": "error", "code": self.status}}
        return web.json_response(body, status=self.status, headers={"retry-after": "0.001"})


class Server:
    """Answers requests for chat completions with its answers, in order, and keeps the requests."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any] | Refused] = []
        self.requests: list[dict[str, Any]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        answer = self.answers.pop(0)
        return answer.response() if isinstance(answer, Refused) else web.json_response(answer)


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield server
    await runner.cleanup()
