"""VLLMServerGenerator and servers that give wrong answers, played back without vLLM."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gymnast.envs.core import ConfigurationError
from gymnast.trainer.generation.contract import GenerationError
from gymnast.trainer.models.images import ImageEncoder
from gymnast.trainer.vllm.pictures import probe
from gymnast.trainer.vllm.servers import VLLMServerGenerator

from ..training.buttons import adapted, model
from ..vision.families import make
from .serving import ask

Answer = Callable[[dict[str, Any]], Any]
ERROR = {"error": {"message": "an internal error", "type": "InternalServerError", "param": None, "code": 500}}
NO_REPLICA = {"error": {"message": "data_parallel_rank 1000000 is out of range [0, 1).", "code": 400}}


@cache
def images() -> ImageEncoder:
    return ImageEncoder(make("qwen3_vl")[0])


class Refusal(Exception):
    """Answer with this status; 0 closes the connection."""

    def __init__(self, status: int, body: Any = ERROR) -> None:
        self.status, self.body = status, body


class RecordedServer:
    """Answers as vLLM 0.32 does. `answers` replaces the answers of some paths."""

    def __init__(self, **answers: Answer | Any) -> None:
        self.weights = "default"
        self.asked: list[str] = []
        self.answers: dict[str, Any] = {
            "health": {},
            "version": {"version": "0.32.0+cpu"},
            "v1/models": {"data": [{"max_model_len": 1024}]},
            "is_paused": {"is_paused": False},
            "get_world_size": {"world_size": 1},
            "weight_info": lambda _: {"weight_version": self.weights},
            "inference/v1/generate": self.generate,
            "init_weight_transfer_engine": {},
            "pause": {},
            "start_weight_update": {},
            "update_weights": {},
            "finish_weight_update": lambda body: setattr(self, "weights", body["weight_version"]),
            "reset_prefix_cache": {"success": True},
            "reset_encoder_cache": {},
            "resume": {},
        } | answers
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                path = self.path.partition("?")[0].strip("/")
                if "X-data-parallel-rank" in self.headers:
                    answer = Refusal(400, NO_REPLICA)
                else:
                    server.asked.append(path)
                    answer = server.answers.get(path, Refusal(404))
                status = 200
                try:
                    if isinstance(answer, Refusal):
                        raise answer
                    content = answer(json.loads(body or "{}")) if callable(answer) else answer
                except Refusal as refusal:
                    status, content = refusal.status, refusal.body
                if not status:
                    self.close_connection = True
                    return
                data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def generate(self, body: dict[str, Any], **choice: Any) -> dict[str, Any]:
        """Answer with the token 7, as often as tokens were asked for."""
        count = body["sampling_params"]["max_tokens"]
        content = [{"token_id": 7, "logprob": 0.0 if count == 1 else -0.5}] * count
        return {
            "prompt_token_ids": body["token_ids"],
            "usage": {"prompt_tokens_details": {"cached_tokens": 3}},
            "choices": [
                {
                    "token_ids": [7] * count,
                    "finish_reason": "length",
                    "logprobs": {"content": content},
                    "weight_versions": [{"version": self.weights, "start": 0, "end": count}],
                }
                | choice
            ],
        }

    def turns(self) -> int:
        """Return the number of requests for tokens, without the check at the start."""
        return self.asked.count("inference/v1/generate") - 1

    @contextmanager
    def serving(self) -> Iterator[RecordedServer]:
        thread = threading.Thread(target=self._http.serve_forever, args=[0.02])
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            thread.join()
            self._http.server_close()


@contextmanager
def generating(
    *servers: RecordedServer, timeout: float = 0.5, agent: Any = None, images: ImageEncoder | None = None
) -> Iterator[VLLMServerGenerator]:
    """Make a generator for these servers and load its first weights."""
    with ExitStack() as stack:
        for server in servers:
            stack.enter_context(server.serving())
        urls = [server.url for server in servers]
        generator = VLLMServerGenerator(urls, max_model_len=1024, timeout=timeout, images=images)
        stack.callback(generator.close)
        generator.load_weights(agent or model(), version=0)
        yield generator


def raising(status: int, body: Any = ERROR) -> Answer:
    def answer(_: Any) -> Any:
        raise Refusal(status, body)

    return answer


def not_at_first(server: RecordedServer, later: Answer) -> Answer:
    """Give the usual answer to the check at the start, and this answer from then on."""
    return lambda body: server.generate(body) if server.turns() == 0 else later(body)


async def test_answers_are_passed_on() -> None:
    server = RecordedServer()
    with generating(server) as generator:
        found = await generator.generate(ask([5, 6, 7], max_tokens=4))
    assert (found.token_ids, found.logprobs, found.finish) == ([7] * 4, [-0.5] * 4, "length")
    assert (found.prompt_ids, found.num_cached) == ([5, 6, 7], 3)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"version": {"version": "0.31.3"}}, r"has vLLM 0\.31\.3; gymnast needs 0\.32"),
        ({"v1/models": {"data": [{"max_model_len": 512}]}}, "takes 512 tokens"),
        ({"inference/v1/generate": raising(403)}, "answered 403: an internal error; start it with"),
        ({"is_paused": raising(404)}, "answered 404"),  # VLLM_SERVER_DEV_MODE is not set
        ({"is_paused": {"is_paused": True}}, "in the middle of an update"),
        ({"init_weight_transfer_engine": raising(500)}, "cannot be given new weights"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_a_server_without_an_option_is_refused(answers: dict[str, Any], message: str) -> None:
    with RecordedServer(**answers).serving() as server, pytest.raises(ConfigurationError, match=message):
        VLLMServerGenerator([server.url], max_model_len=1024, timeout=0.5)


def test_logprobs_of_another_distribution_are_refused() -> None:
    server = RecordedServer()
    server.answers["inference/v1/generate"] = lambda body: server.generate(
        body, logprobs={"content": [{"token_id": 7, "logprob": -2.0}]}
    )
    with server.serving(), pytest.raises(ConfigurationError, match="--logprobs-mode processed_logprobs is missing"):
        VLLMServerGenerator([server.url], max_model_len=1024, timeout=0.5)


@pytest.mark.parametrize("what", ["lost", "other tokens"])
def test_each_server_is_shown_pictures_and_a_lost_one_is_named_so(what: str) -> None:
    server, other = RecordedServer(), RecordedServer()
    expanded = probe(images()).ids
    server.answers["inference/v1/generate"] = not_at_first(
        server, lambda body: server.generate(body) | {"prompt_token_ids": expanded}
    )

    def fail(body: Any) -> Any:
        if what == "other tokens":
            return other.generate(body)
        other.answers["health"] = Refusal(503)
        raise Refusal(0)

    other.answers["inference/v1/generate"] = not_at_first(other, fail)
    message = "makes other tokens" if what == "other tokens" else ".* was lost while it was shown a picture"
    with pytest.raises(ConfigurationError, match=f"{other.url} {message}"), generating(server, other, images=images()):
        pass


def test_an_adapter_that_is_merged_because_of_pictures_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    server = RecordedServer(**{"gymnast/adapter": {"max_lora_rank": 8, "image_backend": None}})
    expanded = probe(images()).ids
    server.answers["inference/v1/generate"] = lambda body: server.generate(body) | {"prompt_token_ids": expanded}
    with caplog.at_level(logging.WARNING), generating(server, agent=adapted(), images=images()):
        assert "the adapter is merged into the weights for vLLM" in caplog.text


def test_nccl_needs_a_gpu_here_too() -> None:
    message = "Call to collective_rpc method failed: Invalid init_info for NCCLWeightTransferEngine: ..."
    server = RecordedServer(init_weight_transfer_engine=raising(500, {"error": {"message": message}}))
    with pytest.raises(ConfigurationError, match=r"by NCCL, but the model in training is on cpu"), generating(server):
        pass


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"finish_reason": "abort"}, "ended an answer early: abort"),
        ({"logprobs": {"content": [{"token_id": 7, "logprob": -9999.0}] * 16}}, "not finite"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
async def test_an_incomplete_answer_is_an_error(choice: dict[str, Any], message: str) -> None:
    server = RecordedServer()
    server.answers["inference/v1/generate"] = not_at_first(server, lambda body: server.generate(body, **choice))
    with generating(server) as generator, pytest.raises(GenerationError, match=message):
        await generator.generate(ask())


@pytest.mark.parametrize("status", [400, 500, 503])
async def test_an_error_of_a_healthy_server_is_not_sent_to_another(status: int) -> None:
    server, other = RecordedServer(), RecordedServer()
    server.answers["inference/v1/generate"] = not_at_first(server, raising(status))
    with generating(server, other) as generator:
        with pytest.raises(GenerationError, match=f"answered {status}: an internal error"):
            await generator.generate(ask())
        assert generator.servers_present == [server.url, other.url]
    assert (server.turns(), other.turns()) == (1, 0)


@pytest.mark.parametrize("failure", ["hangs up", "engine died", "old weights"])
async def test_a_lost_request_goes_to_another_server(failure: str) -> None:
    server, other = RecordedServer(), RecordedServer()

    def fail(body: Any) -> Any:
        if failure == "old weights":
            return server.generate(body, weight_versions=[{"version": "default", "start": 0, "end": 16}])
        server.answers["health"] = Refusal(503)
        raise Refusal(0 if failure == "hangs up" else 500)

    server.answers["inference/v1/generate"] = not_at_first(server, fail)
    with generating(server, other) as generator:
        found = await asyncio.gather(*[generator.generate(ask(seed=seed)) for seed in range(4)])
        assert [generation.token_ids for generation in found] == [[7] * 16] * 4
        assert generator.servers_present == [other.url]
    assert server.turns() in (1, 2)  # it may be lost before the second is sent
    assert other.turns() == 4


async def test_the_request_of_a_server_that_hangs_goes_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymnast.trainer.vllm.server.HEALTH_SECONDS", 0.2)
    server, other = RecordedServer(), RecordedServer()
    released = threading.Event()

    def hang(body: Any) -> Any:
        server.answers["health"] = hang
        released.wait(20)
        raise Refusal(0)

    server.answers["inference/v1/generate"] = not_at_first(server, hang)
    with generating(server, other) as generator:
        try:
            found = await asyncio.gather(*[generator.generate(ask(seed=seed)) for seed in range(2)])
        finally:
            released.set()
        assert [generation.token_ids for generation in found] == [[7] * 16] * 2
        assert generator.servers_present == [other.url]


async def test_a_server_that_comes_back_behind_a_page_of_a_proxy_takes_part_again() -> None:
    server, other = RecordedServer(), RecordedServer()
    server.answers["inference/v1/generate"] = not_at_first(server, raising(0))
    looks = 0

    def page(body: Any) -> Any:
        nonlocal looks
        looks += 1
        server.answers["inference/v1/generate"] = server.generate
        raise Refusal(200, "no JSON") if looks < 3 else Refusal(200, {"weight_version": server.weights})

    server.answers["weight_info"] = page
    with generating(server, other) as generator:
        await asyncio.gather(*[generator.generate(ask(seed=seed)) for seed in range(2)])
        async with asyncio.timeout(20):
            while len(generator.servers_present) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert looks >= 3


async def test_a_request_that_kills_every_server_is_given_up() -> None:
    servers = [RecordedServer() for _ in range(7)]
    for server in servers:
        server.answers["inference/v1/generate"] = not_at_first(server, raising(0))
    with generating(*servers) as generator, pytest.raises(GenerationError, match="5 servers were lost"):
        await generator.generate(ask())


def test_a_server_that_is_lost_during_an_update_does_not_hold_up_the_others() -> None:
    server, other = RecordedServer(update_weights=Refusal(0)), RecordedServer()
    with generating(server, other) as generator:
        assert generator.servers_present == [other.url]
    assert "resume" not in server.asked
    assert other.asked[-8:] == [
        "init_weight_transfer_engine",
        "pause",
        "start_weight_update",
        "update_weights",
        "finish_weight_update",
        "reset_prefix_cache",
        "reset_encoder_cache",
        "resume",
    ]


def test_cached_prefixes_of_old_weights_must_be_gone() -> None:
    server = RecordedServer(reset_prefix_cache={"success": False})
    with pytest.raises(GenerationError, match="still holds prefixes"), generating(server):
        pass


async def test_a_request_that_a_restarted_server_refused_is_sent_again() -> None:
    """The first refusal finds the restart; the second asks for the weights when they have been sent again."""
    server = RecordedServer(**{"gymnast/adapter": {"max_lora_rank": 8, "image_backend": None}})
    has_adapter, is_restored, looks = False, threading.Event(), 0

    def label(_: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:
            assert is_restored.wait(20)
        return {"weight_version": server.weights}

    def take_label(body: Any) -> None:
        nonlocal has_adapter
        has_adapter, server.weights = True, body["new_version"]
        is_restored.set()

    def answer(body: Any) -> Any:
        if body.get("model") and not has_adapter:
            raise Refusal(404)
        return server.generate(body)

    server.answers |= {"update_weight_version": take_label, "inference/v1/generate": answer}
    with generating(server, timeout=20) as generator:
        generator.load_weights(adapted(), version=1)
        server.weights, has_adapter = "default", False
        is_restored.clear()
        server.answers["weight_info"] = label
        found = await asyncio.gather(*[generator.generate(ask(seed=seed)) for seed in range(2)])
    assert [generation.token_ids for generation in found] == [[7] * 16] * 2


async def test_a_server_that_returns_without_lora_is_left_out() -> None:
    server = RecordedServer(**{"gymnast/adapter": {"max_lora_rank": 8, "image_backend": None}})
    server.answers["update_weight_version"] = lambda body: setattr(server, "weights", body["new_version"])
    models: list[str | None] = []

    def keeping(body: Any) -> Any:
        models.append(body.get("model"))
        return server.generate(body)

    server.answers["inference/v1/generate"] = keeping
    with generating(server, timeout=3) as generator:
        generator.load_weights(adapted(), version=1)
        await generator.generate(ask())
        server.weights = "default"
        del server.answers["gymnast/adapter"]
        with pytest.raises(GenerationError, match="takes adapters up to rank 0 "):
            await generator.generate(ask())
    assert models[1:3] == ["gymnast", "gymnast"]
    assert {models[0], *models[3:]} == {None}  # the checks of a server need no adapter
