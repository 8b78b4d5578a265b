"""VLLMServerGenerator with two servers: exact tokens, new weights, training, and lost servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from transformers import PreTrainedModel

from gymnast.envs import Episode, OpenAIPolicy, RolloutEngine, StopReason, ToolEnv, tool
from gymnast.envs.core import ConfigurationError
from gymnast.envs.engine.rollout_engine import episode_specs
from gymnast.trainer import Generation, GRPOTrainer
from gymnast.trainer.generation.contract import GenerationError, StopTexts
from gymnast.trainer.testing.tiny import make_tiny_model
from gymnast.trainer.vllm.servers import VLLMServerGenerator

from ..training.buttons import ROWS, adapted, make_trainer, tokenizer
from ..training.buttons import model as buttons_model
from .server_training import launch_training
from .serving import PROMPT, ServerProcess, answers, ask, change, error, free_ports, start_servers, until

CONTEXT = 1024
OPTIONS = ["--max-model-len", str(CONTEXT), "--max-num-seqs", "64", "--kv-cache-memory-bytes", str(64 << 20)]
OPTIONS += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]  # for OpenAIPolicy
TOLERANCE = 1e-4  # nats, in float32; seen: 5e-6


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    folder = tmp_path_factory.mktemp("serving") / "model"
    buttons_model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    started = start_servers(folder, 2, OPTIONS)
    yield started
    for server in started:
        server.stop()


@pytest.fixture
def model() -> PreTrainedModel:
    return buttons_model()


@pytest.fixture
def generator(servers: list[ServerProcess], model: Any) -> Iterator[VLLMServerGenerator]:
    made = VLLMServerGenerator([server.url for server in servers], max_model_len=CONTEXT, timeout=60)
    made.load_weights(model, version=0)
    yield made
    made.close()


def resets(server: ServerProcess) -> float:
    """Return how often its prefix cache was reset."""
    lines = server.get("metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if 'requests_total{handler="/reset_prefix_cache"' in line)


class Light(ToolEnv):
    """A final tool without arguments, and prompts of any length."""

    def reset_task(self, task: Any) -> Any:
        return [{"role": "user", "content": "Is it on? " * task["times"]}]

    @tool(final=True)
    def look(self) -> str:
        """Look at the light."""
        self.reward = 1.0
        return "it is on"


async def test_openai_policy_plays(servers: list[ServerProcess]) -> None:
    """The weights are random, so the server is told to begin its answer with a call."""
    forced = {"type": "function", "function": {"name": "look"}}

    async def play(times: int, name: str = str(servers[0].model)) -> Episode:
        url = f"{servers[0].url}/v1"
        policy = OpenAIPolicy(name, base_url=url, temperature=0.0, max_tokens=64, tool_choice=forced)
        try:
            engine = RolloutEngine(Light, policy)
            [episode] = await engine.run(episode_specs([{"times": times}], group_size=1, seed=0))
            return episode
        finally:
            await policy.aclose()

    called = [await play(times=8) for _ in range(2)]
    assert [(episode.stop, episode.reward) for episode in called] == [(StopReason.FINAL_ANSWER, 1.0)] * 2
    assert called[0].turns[0].num_tokens > 0
    assert 0 < called[1].turns[0].num_cached_tokens <= called[1].turns[0].num_prompt_tokens
    assert (await play(times=2000)).is_overlong
    with pytest.raises(ConfigurationError, match="no-such-model"):
        await play(times=1, name="no-such-model")


SAMPLINGS = [{}, {"temperature": 0.7}, {"temperature": 1.3, "top_k": 5}, {"top_p": 0.8}, {"min_p": 0.05}]


async def test_logprobs_are_the_models(generator: VLLMServerGenerator, model: Any) -> None:
    """All distributions are asked for at once, so they share batches."""
    options = [*SAMPLINGS, {"temperature": 0.0}, {"temperature": 0.0, "top_k": 3}]
    requests = [ask(PROMPT[: 20 * seed + 1], seed=seed, **option) for seed in range(5) for option in options]
    for request, found in zip(requests, await answers(generator, requests), strict=True):
        assert found.prompt_ids == request.prompt.ids
        assert len(found.token_ids) == len(found.logprobs) == 16
        assert error(model, found, request.sampling) < TOLERANCE


async def test_the_same_seed_gives_the_same_answer_wherever_it_is_asked(generator: VLLMServerGenerator) -> None:
    requests = [ask(seed=seed % 4) for seed in range(16)]
    found = [generation.token_ids for generation in await answers(generator, requests)]
    assert found == found[:4] * 4
    assert len({tuple(answer) for answer in found}) == 4
    assert (await generator.generate(ask(seed=2**63 - 1))).token_ids != found[0]


async def test_both_servers_have_their_share(generator: VLLMServerGenerator, servers: list[ServerProcess]) -> None:
    before = [server.metric("vllm:request_success_total") for server in servers]
    await answers(generator, [ask(seed=seed) for seed in range(20)])
    counts = [server.metric("vllm:request_success_total") - old for server, old in zip(servers, before, strict=True)]
    assert sum(counts) == 20
    assert min(counts) >= 5  # an answer may arrive before the last request is sent


async def test_the_token_that_completes_a_stop_text_ends_an_answer(generator: VLLMServerGenerator) -> None:
    whole = await generator.generate(ask(max_tokens=40))
    decode: Any = tokenizer().decode
    texts = StopTexts(("never", decode(whole.token_ids[10:12])), decode)
    stopped = await generator.generate(replace(ask(max_tokens=40), stop_texts=texts))
    assert (stopped.token_ids, stopped.finish) == (texts.cut(whole.token_ids), "stop")
    assert len(stopped.logprobs) == len(stopped.token_ids)


async def test_answers_end_at_a_stop_token_or_the_limit(generator: VLLMServerGenerator) -> None:
    whole = await generator.generate(ask(max_tokens=40))
    assert (whole.finish, len(whole.token_ids)) == ("length", 40)
    stop = whole.token_ids[9]
    first = whole.token_ids.index(stop)
    stopped = await generator.generate(ask(max_tokens=40, stop_ids=frozenset({stop, 371})))
    assert stopped.finish == "stop"
    assert stopped.token_ids == whole.token_ids[: first + 1]
    exact = await generator.generate(ask(max_tokens=first + 1, stop_ids=frozenset({stop})))
    assert (exact.token_ids, exact.finish) == (stopped.token_ids, "stop")


async def test_a_cancelled_request_leaves_its_server(
    generator: VLLMServerGenerator, servers: list[ServerProcess]
) -> None:
    def total(name: str) -> float:
        return sum(server.metric(f"vllm:{name}") for server in servers)

    answered = total("request_success_total")
    task = asyncio.create_task(generator.generate(ask(PROMPT[:5], max_tokens=CONTEXT - 5)))
    await until(lambda: total("num_requests_running") == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: total("num_requests_running") == 0)
    assert total("request_success_total") == answered


async def test_new_weights_are_sampled_with(
    generator: VLLMServerGenerator, servers: list[ServerProcess], model: Any
) -> None:
    requests = [ask(seed=seed) for seed in range(4)]
    for version in (7, 8):
        before = await answers(generator, requests)
        assert {item.num_cached for item in await answers(generator, requests)} == {96}  # whole blocks of 32
        counts = [resets(server) for server in servers]
        change(model)
        assert max(error(model, item) for item in before) > 0.5
        await asyncio.to_thread(generator.load_weights, model, version)
        assert [resets(server) for server in servers] == [count + 1 for count in counts]
        after = [await generator.generate(request) for request in requests[:2]]  # one at each server
        assert after[0].num_cached == 0
        assert {weight.weight_version for weight in after} == {version}
        assert max(error(model, weight) for weight in after) < TOLERANCE


async def test_an_adapter_is_merged_for_servers_that_take_none(
    generator: VLLMServerGenerator, caplog: pytest.LogCaptureFixture
) -> None:
    agent = adapted()
    change(agent)
    await asyncio.to_thread(generator.load_weights, agent, 1)
    assert "--enable-lora --max-lora-rank 8," in caplog.text
    assert error(agent, await generator.generate(ask())) < TOLERANCE


async def test_a_refused_request_is_not_tried_again(generator: VLLMServerGenerator) -> None:
    with pytest.raises(GenerationError, match=r"answered 400.*1024"):
        await generator.generate(ask(PROMPT * 11))
    assert len(generator.servers_present) == 2
    with pytest.raises(ValueError, match="vocabulary"):
        await generator.generate(ask([5, 9999]))


def test_requests_from_several_event_loops(generator: VLLMServerGenerator) -> None:
    found = [asyncio.run(answers(generator, [ask(seed=seed) for seed in range(3)])) for _ in range(2)]
    assert [generation.token_ids for generation in found[0]] == [generation.token_ids for generation in found[1]]


async def test_weights_of_another_run_are_never_sampled_with(
    generator: VLLMServerGenerator, servers: list[ServerProcess], model: Any
) -> None:
    """If another run loads weights into these servers, this run loses them."""
    async with httpx2.AsyncClient() as client:
        for server in servers:
            await client.post(f"{server.url}/update_weight_version", json={"new_version": "other-0"})
    generator.sleep()  # a server cannot be restored while the model may be in training
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            await generator.generate(ask())
    generator.wake()
    assert error(model, await generator.generate(ask())) < TOLERANCE


def test_servers_that_cannot_be_used_are_refused_at_once(servers: list[ServerProcess]) -> None:
    urls = [server.url for server in servers]
    with pytest.raises(ConfigurationError, match=r"takes 1024 tokens .* set\s+max_model_len=1024"):
        VLLMServerGenerator(urls, max_model_len=CONTEXT + 1)
    [port] = free_ports(1)
    with pytest.raises(ConfigurationError, match=r"no vLLM server answered .*gymnast serve vllm"):
        VLLMServerGenerator([urls[0], f"http://127.0.0.1:{port}"], max_model_len=CONTEXT, timeout=0.5)
    with pytest.raises(ConfigurationError, match=r"like http://host:8000, got '127\.0\.0\.1'"):
        VLLMServerGenerator(["127.0.0.1"], max_model_len=CONTEXT)
    with pytest.raises(ConfigurationError, match="is empty"):
        VLLMServerGenerator([], max_model_len=CONTEXT)


def test_a_model_that_finds_all_tokens_equally_likely_is_accepted(
    generator: VLLMServerGenerator, servers: list[ServerProcess], model: Any
) -> None:
    with torch.no_grad():
        model.lm_head.weight.zero_()
    generator.load_weights(model, 1)
    VLLMServerGenerator([server.url for server in servers], max_model_len=CONTEXT).close()


async def test_a_generator_that_is_closed_or_has_no_weights(servers: list[ServerProcess], model: Any) -> None:
    generator = VLLMServerGenerator([servers[0].url], max_model_len=CONTEXT)
    with pytest.raises(GenerationError, match="load_weights"):
        await generator.generate(ask())
    await asyncio.to_thread(generator.load_weights, model, 0)
    waiting = asyncio.create_task(generator.generate(ask(PROMPT[:5], max_tokens=CONTEXT - 5)))
    await until(lambda: servers[0].metric("vllm:num_requests_running") == 1)
    generator.close()
    with pytest.raises(GenerationError, match="closed"):
        await waiting
    with pytest.raises(GenerationError, match="closed"):
        await generator.generate(ask())
    generator.close()


def test_training(tmp_path: Path, servers: list[ServerProcess]) -> None:
    urls = [server.url for server in servers]
    options: dict[str, Any] = {"generator": "vllm-server", "vllm_server_urls": urls, "max_model_len": CONTEXT}
    trainer = make_trainer(tmp_path, GRPOTrainer, max_steps=2, eval_rows=ROWS, **options)
    rounds: list[list[Episode]] = []
    trainer.on_episodes = rounds.append  # type: ignore[method-assign,assignment]
    counts = [resets(server) for server in servers]
    try:
        trainer.train()
        assert [resets(server) - old for server, old in zip(servers, counts, strict=True)] == [2, 2]
        metrics = trainer.evaluate()
    finally:
        trainer.player.generator.close()
    versions = [{turn.weight_version for episode in episodes for turn in episode.turns} for episodes in rounds]
    assert versions == [{0}, {1}]
    logged = [logs for logs in trainer.state.log_history if "loss" in logs]
    assert all(logs["tokens/drift"] == 0 and logs["episodes/failed"] == 0 for logs in logged)
    assert max(logs["sampling/sampling_logp_difference/max"] for logs in logged) < 1e-3  # seen: 2e-5
    assert all(logs["tokens/cached"] > 0 for logs in logged)
    assert metrics["eval_episodes/played"] == 16


@pytest.mark.parametrize("weights", ["whole", "fsdp2", "zero3"])
def test_training_in_two_processes(weights: str, tmp_path: Path, servers: list[ServerProcess]) -> None:
    """Both sample with the weights that rank 0 has loaded, and their losses are those of one process."""
    urls = [server.url for server in servers]
    options: dict[str, Any] = {"generator": "vllm-server", "vllm_server_urls": urls, "max_model_len": CONTEXT}
    single = make_trainer(tmp_path / "single", max_steps=2, rows=ROWS, **options)
    single.train()
    single.player.generator.close()
    counts = [resets(server) for server in servers]
    reports = launch_training(tmp_path, urls, weights)
    assert {report["weights"] for report in reports} == {weights}
    expected = [logs["loss"] for logs in single.state.log_history if "loss" in logs]
    assert all(report["losses"] == pytest.approx(expected, abs=1e-4) for report in reports)
    assert [report["versions"] for report in reports] == [[[0], [1]], [[0], [1]]]
    assert all(report["failed"] == 0 for report in reports)
    assert max(report["difference"] for report in reports) < 1e-3
    assert [resets(server) - old for server, old in zip(servers, counts, strict=True)] == [2, 2]


# Servers that are killed and started again. Each test goes on from where the last one ended.


LONG = [ask(seed=seed, max_tokens=800) for seed in range(12)]


@pytest.fixture(scope="module")
def last_model() -> PreTrainedModel:
    return buttons_model()


@pytest.fixture(scope="module")
def last_generator(servers: list[ServerProcess], last_model: Any) -> Iterator[VLLMServerGenerator]:
    made = VLLMServerGenerator([server.url for server in servers], max_model_len=CONTEXT, timeout=4)
    made.load_weights(last_model, version=0)
    yield made
    made.close()


async def started(generator: VLLMServerGenerator, server: ServerProcess) -> list[asyncio.Task[Generation]]:
    """Send the long requests; return when this server has begun with its share."""
    tasks = [asyncio.create_task(generator.generate(item)) for item in LONG]
    async with asyncio.timeout(60):  # not by `until`: the requests must go on while a busy server is asked
        while not await asyncio.to_thread(server.metric, "vllm:num_requests_running"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return tasks


async def test_the_requests_of_a_killed_server_go_to_the_other(
    last_generator: VLLMServerGenerator, servers: list[ServerProcess], last_model: Any
) -> None:
    expected = await answers(last_generator, LONG)
    tasks = await started(last_generator, servers[1])
    servers[1].kill()
    found = await asyncio.gather(*tasks)
    assert [generation.token_ids for generation in found] == [generation.token_ids for generation in expected]
    assert max(error(last_model, answer) for answer in found) < TOLERANCE
    assert last_generator.servers_present == [servers[0].url]


async def test_new_weights_go_to_the_remaining_servers(last_generator: VLLMServerGenerator, last_model: Any) -> None:
    change(last_model)
    await asyncio.to_thread(last_generator.load_weights, last_model, 1)
    assert error(last_model, await last_generator.generate(ask())) < TOLERANCE


async def test_a_server_that_returns_gets_the_current_weights(
    last_generator: VLLMServerGenerator, servers: list[ServerProcess], last_model: Any
) -> None:
    servers[1].start_again()
    await asyncio.to_thread(servers[1].wait)
    await until(lambda: len(last_generator.servers_present) == 2)
    assert servers[1].get("weight_info").json() == servers[0].get("weight_info").json()
    found = await answers(last_generator, [ask(seed=seed) for seed in range(8)])
    assert servers[1].metric("vllm:request_success_total") == 4 + 1  # one is the check at its return
    assert max(error(last_model, answer) for answer in found) < TOLERANCE
    assert {answer.weight_version for answer in found} == {1}


async def test_a_server_whose_engine_died_is_lost(
    last_generator: VLLMServerGenerator, servers: list[ServerProcess], last_model: Any
) -> None:
    """It may still answer with errors. Another server can answer these requests."""
    tasks = await started(last_generator, servers[1])
    servers[1].kill_engine()
    found = await asyncio.gather(*tasks)
    assert max(error(last_model, answer) for answer in found) < TOLERANCE
    assert last_generator.servers_present == [servers[0].url]


def test_another_model_is_refused(last_generator: VLLMServerGenerator, servers: list[ServerProcess]) -> None:
    other = VLLMServerGenerator([servers[0].url], max_model_len=64)
    try:
        with pytest.raises(GenerationError, match="start that server again"):
            other.load_weights(make_tiny_model(tokenizer(), hidden_size=64), version=0)
    finally:
        other.close()


async def test_without_any_server_requests_fail_after_a_while(
    last_generator: VLLMServerGenerator, servers: list[ServerProcess], last_model: Any
) -> None:
    servers[0].kill()
    with pytest.raises(GenerationError, match=f"no vLLM server answered within 4 s: {servers[0].url}"):
        await last_generator.generate(ask())
    with pytest.raises(GenerationError, match="no vLLM server answered within 4 s"):
        await asyncio.to_thread(last_generator.load_weights, last_model, 2)
