"""Whole steps of GRPOTrainer: rollout, scoring, update in bfloat16 (weights in float32), and new weights.

    python -m benchmarks.gpu.training --size 0.6B [--generator vllm] [--max-staleness 1] [--small]

prints one line of JSON: seconds of a step and of its parts (medians), megabytes at the peak, and the difference between
the log-probabilities of sampler and trainer. 64 episodes, 8 of each task, have 4 turns of 128 sampled tokens, with 256
observed tokens between them. With random weights no turn would end by itself, so each is cut there. With
`--max-staleness 1` the next round is played meanwhile, by a copy of the model on the same GPU: compare
`seconds_of_a_step` with and without it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from gymnast.envs import Environment, Message, StepResult
from gymnast.trainer import Generation, GenerationRequest, Generator, GRPOConfig, GRPOTrainer, TransformersGenerator
from gymnast.trainer.testing.tiny import make_tiny_tokenizer

from .models import DEVICE, count_parameters, described, make_model, peak_megabytes, synchronize, utilisation

TURNS, MEMBERS = 4, 8
CONTEXT = 4096
LETTERS = "abcdefgh"


@dataclass(kw_only=True, frozen=True)
class Shape:
    """A training's size. One letter of a message is one token."""

    groups: int = 8
    prompt: int = 256  # tokens
    sampled: int = 128  # in each turn
    observed: int = 256  # after each turn but the last
    steps: int = 5  # the first of them is not measured


SMALL = Shape(groups=2, prompt=16, sampled=4, observed=8, steps=2)


class Talk(Environment):
    """Answers every message with letters; the reward is random."""

    def __init__(self, observed: int) -> None:
        super().__init__()
        self.observed = observed

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        super().reset(seed=seed)
        self.turns = 0
        return [{"role": "user", "content": self.task_of(options)["text"]}], {}

    def step(self, action: Message) -> StepResult:
        self.turns += 1
        if self.turns == TURNS:
            return StepResult([], random.random(), True, False, {})
        return StepResult([{"role": "user", "content": LETTERS[0] * self.observed}], 0.0, False, False, {})


class FixedTurns(Generator):
    """Ends each answer of another generator after a number of tokens, as if the model had; times new weights."""

    def __init__(self, inner: Generator, tokens: int) -> None:
        self.inner, self.tokens = inner, tokens
        self.loading: list[float] = []  # seconds of each `load_weights`

    async def generate(self, request: GenerationRequest) -> Generation:
        answer = await self.inner.generate(replace(request, max_tokens=min(self.tokens, request.max_tokens)))
        return replace(answer, finish="stop")

    def load_weights(self, model: PreTrainedModel, version: int) -> None:
        synchronize()
        started = time.perf_counter()
        self.inner.load_weights(model, version)
        synchronize()
        self.loading.append(time.perf_counter() - started)

    def wake(self) -> None:
        self.inner.wake()

    def weights_will_change(self) -> None:
        self.inner.weights_will_change()

    def sleep(self) -> None:
        self.inner.sleep()

    def close(self) -> None:
        self.inner.close()


class TimedTrainer(GRPOTrainer):
    """Notes when each step ends."""

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        synchronize()
        self.step_ends = [*getattr(self, "step_ends", []), (self.state.global_step, time.perf_counter())]
        return loss


def make_generator(name: str, model: Any, *, copies: bool) -> Generator:
    dtype = "bfloat16" if DEVICE == "cuda" else None
    if name == "transformers":
        return TransformersGenerator(model, copies=copies, dtype=torch.bfloat16 if dtype else None)
    from gymnast.trainer.vllm.in_process import VLLMGenerator

    return VLLMGenerator(model, max_model_len=CONTEXT, dtype=dtype, gpu_memory_utilization=0.4)


def texts(shape: Shape) -> list[dict[str, str]]:
    numbers = random.Random(0)
    return [{"text": "".join(numbers.choices(LETTERS, k=shape.prompt))} for _ in range(shape.groups * shape.steps)]


def make_config(folder: str, shape: Shape, max_staleness: int) -> GRPOConfig:
    return GRPOConfig(
        output_dir=folder,
        record_run=False,
        max_steps=shape.steps,
        per_device_train_batch_size=shape.groups * MEMBERS,
        num_generations=MEMBERS,
        max_completion_length=TURNS * (shape.sampled + shape.observed + 64),
        max_model_len=CONTEXT,
        max_tokens_per_batch=16_384,
        max_staleness=max_staleness,
        learning_rate=1e-6,
        beta=0.0,
        bf16=DEVICE == "cuda",
        use_cpu=DEVICE == "cpu",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def measured(logs: list[dict[str, Any]], name: str) -> float | None:
    """The median of a metric over the steps without the first."""
    values = [entry[name] for entry in logs if name in entry][1:]
    return statistics.median(values) if values else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", required=True)
    parser.add_argument("--generator", choices=["transformers", "vllm"], default="transformers")
    parser.add_argument("--max-staleness", type=int, default=0)
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    size, shape = ("small", SMALL) if arguments.small else (arguments.size, Shape())
    model = make_model(size)
    inner = make_generator(arguments.generator, model, copies=arguments.max_staleness > 0)
    generator = FixedTurns(inner, shape.sampled)
    with tempfile.TemporaryDirectory() as folder:
        trainer = TimedTrainer(
            model=model,
            environment=Talk(shape.observed),
            args=make_config(folder, shape, arguments.max_staleness),
            train_dataset=texts(shape),
            processing_class=make_tiny_tokenizer(["x"], vocab_size=280),
            generator=generator,
        )
        trainer.train()
        logs = [entry for entry in trainer.state.log_history if "reward" in entry]
    print(json.dumps(described(results(trainer, generator, shape, logs))))


def results(trainer: Any, generator: FixedTurns, shape: Shape, logs: list[dict[str, Any]]) -> dict[str, Any]:
    ends = dict(trainer.step_ends)  # the last micro-batch of each step
    step = statistics.median(ends[number + 1] - ends[number] for number in range(shape.steps - 1))
    episodes = shape.groups * MEMBERS
    # without those of the chat template
    tokens = episodes * (shape.prompt + TURNS * shape.sampled + (TURNS - 1) * shape.observed)
    update = measured(logs, "time/update")
    values = {
        "seconds_of_a_step": step,
        "seconds_of_rollout": measured(logs, "time/rollout"),
        "seconds_of_update": update,
        "seconds_of_weights": statistics.median(generator.loading[1:] or generator.loading),
        "megabytes": peak_megabytes(),
        "sampled_tokens_per_second_of_a_step": episodes * TURNS * shape.sampled / step,
        "logp_difference_mean": measured(logs, "sampling/sampling_logp_difference/mean"),
        "logp_difference_max": measured(logs, "sampling/sampling_logp_difference/max"),
        "episodes": episodes,
        "tokens": tokens,
        "failed": measured(logs, "episodes/failed"),
    }
    return values | (utilisation(count_parameters(trainer.model), tokens / update) if update else {})


if __name__ == "__main__":
    main()
