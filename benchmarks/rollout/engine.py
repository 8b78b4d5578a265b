"""Measures the cost of the engine, the token bookkeeping and the generator, without the model itself.

    python -m benchmarks.rollout.engine

prints a table and writes benchmarks/results/engine.json. It takes about a minute on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from gymnast.envs import Calculator, Message, RolloutEngine, ScriptedPolicy, ToolEnv, group_specs, tool, tool_call
from gymnast.envs.tokens import Tokens
from gymnast.trainer import (
    FORMATS,
    ChatFormat,
    Generation,
    GenerationRequest,
    Generator,
    GRPOConfig,
    GRPOTrainer,
    Sampling,
    TokenBudgets,
    TokenPolicy,
    TransformersGenerator,
)
from gymnast.trainer.setup.parts import schedule_of
from gymnast.trainer.testing.tiny import make_tiny_model, make_tiny_tokenizer

RESULTS = Path(__file__).parents[1] / "results" / "engine.json"
TURNS = 8
ROW = {"question": "What is 1 plus 2?", "answer": 3}

Result = tuple[str, float, str]  # name, value, unit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    output = parser.parse_args().output
    results: list[Result] = []
    for part in (engine_overhead, scheduling, token_bookkeeping, parsing, generation):
        for name, value, unit in part():
            print(f"{name:<62} {value:>12,.2f} {unit}", flush=True)
            results.append((name, value, unit))
    machine = {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    entries = [{"name": name, "value": round(value, 3), "unit": unit} for name, value, unit in results]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"machine": machine, "results": entries}, indent=2) + "\n")


def best_of(times: int, measure: Callable[[], float]) -> float:
    """Return the least of several measurements: other load can only add to it."""
    return min(measure() for _ in range(times))


# --- the engine ---------------------------------------------------------------------------------------------------


class AsyncCalculator(ToolEnv):
    """One instant tool that needs no thread."""

    async def reset_task(self, task: Any) -> Any:  # type: ignore[override]
        return [{"role": "user", "content": task["question"]}]

    @tool
    async def add(self, a: int, b: int) -> int:
        """Add two integers.

        Args:
            a: The first integer.
            b: The second integer.
        """
        return a + b

    @tool(final=True)
    async def final_answer(self, answer: int) -> str:
        """Give the final answer.

        Args:
            answer: The answer.
        """
        self.reward = float(answer == 3)
        return "done"


def engine_overhead() -> list[Result]:
    script = [tool_call("add", a=1, b=2)] * (TURNS - 1) + [tool_call("final_answer", answer=3)]

    def seconds(environment: type[ToolEnv], count: int) -> float:
        engine = RolloutEngine(environment, ScriptedPolicy(script), max_concurrency=count)
        started = time.perf_counter()
        episodes = engine.play([ROW], group_size=count)
        elapsed = time.perf_counter() - started
        assert all(episode.reward == 1.0 and len(episode.turns) == TURNS for episode in episodes)
        return elapsed

    results: list[Result] = []
    for kind, environment in (("async tools", AsyncCalculator), ("sync tools, in threads", Calculator)):
        for count in (64, 1024):
            one_turn = best_of(3, lambda env=environment, n=count: seconds(env, n)) / (count * TURNS)
            results.append((f"engine, {count} episodes x {TURNS} turns, {kind}", one_turn * 1e6, "us/turn"))
    return results


# --- the schedule -------------------------------------------------------------------------------------------------


class ManyRows(Sequence[Any]):
    """A data set of a million rows."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: Any) -> Any:
        return ROW


def scheduling() -> list[Result]:
    """The processor time to start a training on a million rows, and to choose the episodes of a round."""
    rows = ManyRows()
    tokenizer = make_tiny_tokenizer(["What is 1 plus 2?"] * 2)
    model = make_tiny_model(tokenizer)
    args = GRPOConfig(output_dir="runs/schedule", per_device_train_batch_size=512, use_cpu=True, report_to="none")
    started = time.process_time()
    trainer = GRPOTrainer(model, AsyncCalculator, args, rows, processing_class=tokenizer)
    schedule = schedule_of(trainer.config, rows)
    schedule.specs(0)
    results = [("a million rows, from the trainer to its first episode", (time.process_time() - started) * 1e3, "ms")]

    def seconds(index: int) -> float:
        started = time.process_time()
        schedule.specs(index)
        return time.process_time() - started

    median = statistics.median(seconds(index) for index in range(1, 31))
    return [*results, ("a million rows, episodes of a round of 64 tasks x 8", median * 1e3, "ms")]


# --- the tokens ---------------------------------------------------------------------------------------------------


class ScriptedGenerator(Generator):
    """Gives the same answer at once."""

    def __init__(self, token_ids: list[int]) -> None:
        self.token_ids = token_ids

    async def generate(self, request: GenerationRequest) -> Generation:
        return Generation(
            token_ids=list(self.token_ids),
            logprobs=[-0.1] * len(self.token_ids),
            finish="stop",
            prompt_ids=request.prompt.ids,
        )

    def load_weights(self, model: Any, version: int) -> None:
        """Do nothing: the answers are scripted."""

    def close(self) -> None:
        """Nothing to release."""


def token_bookkeeping() -> list[Result]:
    """Measure one turn: the request, parsing, and the tokens of the tool's result."""
    tokenizer = make_tiny_tokenizer([])
    chat = ChatFormat(tokenizer)
    answer = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call><|im_end|>'
    generator = ScriptedGenerator(chat.tokenizer(answer, add_special_tokens=False)["input_ids"])
    budgets = TokenBudgets(max_completion_length=1_000_000, max_model_len=1_000_000)
    policy = TokenPolicy(chat, generator, sampling=Sampling(), budgets=budgets)
    environment = Calculator()
    schemas = environment.tool_schemas()
    environment.close()
    [spec] = group_specs("task", ROW, group_size=1, seed=0)

    async def conversation() -> list[float]:
        talk = policy.begin(spec, [{"role": "user", "content": ROW["question"]}], schemas)
        seconds = []
        for _ in range(30):
            started = time.perf_counter()
            act = await talk.act()
            [call] = act.message["tool_calls"]  # type: ignore[typeddict-item]
            result: Message = {"role": "tool", "name": "add", "tool_call_id": call["id"], "content": "3"}  # type: ignore[typeddict-item]
            await talk.observe([result], last=False)
            seconds.append(time.perf_counter() - started)
        return seconds

    runs = [asyncio.run(conversation()) for _ in range(50)]
    return [
        (f"token bookkeeping, turn {turn}", statistics.median(run[turn - 1] for run in runs) * 1e6, "us/turn")
        for turn in (3, 30)
    ]


def parsing() -> list[Result]:
    tokenizer = make_tiny_tokenizer([])
    words = "I look at the numbers first, then I call the tool that adds them. " * 2
    text = words + '<tool_call>\n{"name": "add", "arguments": {"a": 123, "b": 456}}\n</tool_call>'
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert 180 <= len(ids) <= 220  # type: ignore[arg-type]

    def seconds() -> float:
        started = time.perf_counter()
        for _ in range(1000):
            FORMATS["hermes"].parse(text, prefix="", tools=())
        return (time.perf_counter() - started) / 1000

    return [(f"parsing a Hermes completion of {len(ids)} tokens", best_of(5, seconds) * 1e6, "us")]  # type: ignore[arg-type]


# --- the generator ------------------------------------------------------------------------------------------------


def generation(new_tokens: int = 128, prompt_tokens: int = 64) -> list[Result]:
    """Sampled tokens a second with the tiny model, beside `model.generate` on the same prompts."""
    tokenizer = make_tiny_tokenizer([])
    model = make_tiny_model(tokenizer)
    model.generation_config.eos_token_id = None  # type: ignore[union-attr] # every answer takes all its tokens
    results: list[Result] = []
    for batch in (1, 16, 128):
        prompts = torch.randint(9, 256, (batch, prompt_tokens), generator=torch.Generator().manual_seed(batch))
        ours, theirs = [], []
        for _ in range(3):  # in turns, so that both meet the same machine
            ours.append(_ours(model, prompts, new_tokens))
            theirs.append(_theirs(model, prompts, new_tokens))
        fast, reference = (batch * new_tokens / min(seconds) for seconds in (ours, theirs))
        results += [
            (f"generation, batch {batch}, TransformersGenerator", fast, "tokens/s"),
            (f"generation, batch {batch}, model.generate", reference, "tokens/s"),
            (f"generation, batch {batch}, ratio", fast / reference, "x"),
        ]
    return results


def _ours(model: Any, prompts: torch.Tensor, new_tokens: int) -> float:
    async def run() -> float:
        generator = TransformersGenerator(model)
        requests = [
            GenerationRequest(
                prompt=Tokens(prompt), max_tokens=new_tokens, stop_ids=frozenset(), seed=seed, sampling=Sampling()
            )
            for seed, prompt in enumerate(prompts.tolist())
        ]
        started = time.perf_counter()
        answers = await asyncio.gather(*map(generator.generate, requests))
        elapsed = time.perf_counter() - started
        assert all(len(answer.token_ids) == new_tokens for answer in answers)
        generator.close()
        return elapsed

    return asyncio.run(run())


@torch.no_grad()
def _theirs(model: Any, prompts: torch.Tensor, new_tokens: int) -> float:
    started = time.perf_counter()
    output = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=True,
        top_k=0,
        max_new_tokens=new_tokens,
        pad_token_id=0,
        output_logits=True,  # we return log-probabilities, so it may not save the work either
        return_dict_in_generate=True,
    )
    elapsed = time.perf_counter() - started
    assert output.sequences.shape[1] == prompts.shape[1] + new_tokens
    return elapsed


if __name__ == "__main__":
    main()
