"""The rollout benchmark's work with vLLM, as a program of its own: vLLM has a virtual environment of its own.

    python -m benchmarks.rollout.with_vllm MODEL_FOLDER EPISODES

prints one JSON object; the last line of its output.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer

from gymnast.envs import Environment, Episode, Message, ToolEnv
from gymnast.trainer import GRPOConfig, GRPOTrainer

from .work import THINGS, blocking_look_up, latencies, rows

GROUP, MAX_TOKENS, TURNS = 8, 128, 4
QUESTION = " ".join(f"Go on: tell me more of the {thing}, and of what you found there." for thing in THINGS[:3])
BLOCK = 32  # tokens in a block of vLLM's cache, on CPUs; a block that is not full is not kept


class Interview(Environment):
    """Asks on and on, so that episodes have many turns."""

    async def areset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return [{"role": "user", "content": options["task"]["prompt"]}], {}

    async def astep(self, action: Message) -> Any:
        return [{"role": "user", "content": QUESTION}], 0.0, False, False, {}


def main() -> None:
    folder, episodes = sys.argv[1], int(sys.argv[2])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    print(json.dumps(slow_tools(model, tokenizer, episodes) | prefixes(model, tokenizer, episodes)))


def make_trainer(model: Any, tokenizer: Any, environment: Environment, folder: str, **options: Any) -> GRPOTrainer:
    options = {"generator": "vllm"} | options
    return GRPOTrainer(
        model=model,
        environment=environment,
        reward_funcs=lambda completions: [0.0] * len(completions),
        args=GRPOConfig(output_dir=folder, seed=1, use_cpu=True, report_to="none", **options),
        train_dataset=rows(8, seed=1),
        processing_class=tokenizer,
    )


def slow_tools(model: Any, tokenizer: Any, episodes: int) -> dict[str, float]:
    """The same episodes as with transformers; the engine has answered one question before."""
    environment = ToolEnv([blocking_look_up(time.sleep, latencies(1))])
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(model, tokenizer, environment, folder, max_completion_length=MAX_TOKENS, max_turns=TURNS)
        trainer.rollout(rows(1, seed=9))
        started = time.perf_counter()
        played = trainer.rollout(rows(episodes // GROUP, seed=1), num_generations=GROUP)
        seconds = time.perf_counter() - started
        trainer.player.generator.close()
    check(played)
    calls = sum(len(turn.tool_calls) for episode in played for turn in episode.turns)
    return {"seconds": seconds, "calls": calls}


def prefixes(model: Any, tokenizer: Any, episodes: int, **options: Any) -> dict[str, float]:
    """Measure which share of an episode's earlier tokens the prefix cache still holds in its next turn."""
    with tempfile.TemporaryDirectory() as folder:
        limits: dict[str, Any] = {"max_completion_length": 1600, "max_turns": 16}
        trainer = make_trainer(model, tokenizer, Interview(), folder, **limits, **options)
        played = trainer.rollout(rows(episodes // GROUP, seed=3), num_generations=GROUP)
        trainer.player.generator.close()
    check(played)
    known = cached = lost = turns = 0
    for episode in played:
        for before, turn in zip(episode.turns, episode.turns[1:], strict=False):
            had = before.num_prompt_tokens + before.num_tokens - 1  # what was sampled last was not computed
            known, cached, turns = known + had, cached + min(turn.num_cached_tokens, had), turns + 1
            lost += max(had - had % BLOCK - turn.num_cached_tokens, 0)
    return {
        "known": known,
        "cached": cached,
        "lost_tokens": lost,
        "turns": turns,
        "context": known / turns,
        "mean_turns": sum(len(episode.turns) for episode in played) / len(played),
    }


def check(played: list[Episode]) -> None:
    failure = next((episode.failure for episode in played if episode.failure is not None), None)
    assert failure is None, failure
    assert all(trace.drift == 0 for episode in played for trace in episode.traces)


if __name__ == "__main__":
    main()
