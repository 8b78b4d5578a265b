"""The part of vLLM's HTTP interface that training uses, with answers by rule in place of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from gymnast.envs.runtime.threads import run_in_loop

FACTS = {
    "health": {},
    "version": {"version": "0.32.0"},
    "v1/models": {"data": [{"max_model_len": 4096}]},
    "is_paused": {"is_paused": False},
    "reset_prefix_cache": {"success": True},
    "gymnast/adapter": {"max_lora_rank": 0, "image_backend": None},
}


class FakeServer:
    """Answers each request with the tokens that `answer(seed)` gives.

    `requests` counts them by their weights, and `headers` has the headers of each.
    """

    def __init__(self, answer: Callable[[int], list[int]], replicas: int) -> None:
        self.requests: dict[str, int] = {}
        self.headers: list[Mapping[str, str]] = []
        self._answer = answer
        self._replicas = replicas
        self._label = "at the start"

    async def handle(self, request: web.Request) -> web.Response:
        path = request.path.strip("/")
        body: Any = await request.json() if request.can_read_body else {}
        if path == "finish_weight_update":
            self._label = body["weight_version"]
        if path == "inference/v1/generate":
            rank = int(request.headers.get("X-data-parallel-rank", 0))
            if rank >= self._replicas:
                message = f"data_parallel_rank {rank} is out of range [0, {self._replicas})."
                return web.json_response({"error": {"message": message}}, status=400)
            self.headers.append(request.headers)
            return web.json_response(self._generated(body))
        return web.json_response(FACTS.get(path, {"weight_version": self._label}))

    def _generated(self, body: dict[str, Any]) -> dict[str, Any]:
        sampling = body["sampling_params"]
        ids = self._answer(sampling.get("seed") or 0)[: sampling["max_tokens"]]
        self.requests[self._label] = self.requests.get(self._label, 0) + 1
        choice = {
            "token_ids": ids,
            "logprobs": {"content": [{"logprob": 0.0 if "allowed_token_ids" in sampling else -0.5} for _ in ids]},
            "finish_reason": "stop" if ids[-1] in sampling.get("stop_token_ids", []) else "length",
            "weight_versions": [{"version": self._label}],
        }
        usage = {"prompt_tokens_details": {"cached_tokens": 0}}
        return {"choices": [choice], "prompt_token_ids": body["token_ids"], "usage": usage}


@contextmanager
def fake_server(answer: Callable[[int], list[int]], replicas: int = 1) -> Iterator[tuple[str, FakeServer]]:
    """Yields the URL and the server."""
    server = FakeServer(answer, replicas)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application, access_log=None)

    async def start() -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    try:
        yield run_in_loop(start()), server
    finally:
        run_in_loop(runner.cleanup())
