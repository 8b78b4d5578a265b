"""One optimiser step of one trainer, in a process of its own, so that its peak of memory is its own.

    python benchmarks/update/one_step.py ours|trl --shape NAME --without-spread SHARE [--max-tokens N]

with one thread, prints one line of JSON: seconds and processor seconds of each step, megabytes at the peak beyond those
before the first step, and the loss and the gradient norm of the first step.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from gymnast.trainer import GRPOConfig
from gymnast.trainer.learning.losses import StepCounts
from gymnast.trainer.learning.objective import objective
from gymnast.trainer.learning.samples import Batch, Sample, split_evenly
from gymnast.trainer.models.output_head import OutputHead
from gymnast.trainer.models.update_memory import tokens_of_update
from gymnast.trainer.options.derived import learning_settings

GROUP, PAD = 4, 0


@dataclass(frozen=True)
class Shape:
    """A model and the episodes of a step."""

    vocabulary: int
    hidden: int
    layers: int
    episodes: int = 32
    rows: int = 8  # in a batch
    longest: int | None = None  # tokens: lengths are log-normal up to it


SHAPES = {
    "32,000 words": Shape(32_000, 384, 9),  # 30 M parameters, as the next one
    "150,000 words": Shape(150_000, 160, 16),
    "log-normal lengths": Shape(32_000, 256, 3, episodes=16, rows=16, longest=3000),  # 11 M parameters
}

Step = Callable[[], tuple[float, float]]  # computes the gradient; the loss and the gradient's norm


def make_model(shape: Shape) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    hidden = shape.hidden
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 32,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=1,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config).train()


def make_samples(shape: Shape, without_spread: float) -> list[Sample]:
    """Episodes of three turns; 70 % of a completion's tokens are tool results, half of them with log-normal lengths."""
    numbers = torch.Generator().manual_seed(0)

    def integers(low: int, high: int, count: int = 1) -> list[int]:
        return torch.randint(low, high, (count,), generator=numbers).tolist()

    def lengths() -> list[tuple[int, int]]:
        """The sampled and the observed tokens of each turn."""
        if shape.longest is None:
            return [(count, round(count * 3.5)) for count in integers(12, 36, 3)]
        drawn = 800 * torch.randn((), generator=numbers).exp().item()
        count = round(min(drawn, shape.longest - 50) / 5)
        return [(count, count)] * 3

    samples = []
    groups = shape.episodes // GROUP
    for group in range(groups):
        prompt_ids = integers(2, shape.vocabulary, integers(16, 48)[0])
        for member in range(GROUP):
            turns = lengths()
            mask = [learned for sampled, observed in turns for learned in [1] * sampled + [0] * observed]
            mask = mask[: -turns[-1][1]]  # the last turn has no observation
            spread = 0.0 if group < round(without_spread * groups) else 1.0 if member % 2 else -1.0
            samples.append(
                Sample(
                    prompt_ids=prompt_ids,
                    completion_ids=integers(2, shape.vocabulary, len(mask)),
                    mask=mask,
                    sampling_logprobs=[-1.0 if is_learned else 0.0 for is_learned in mask],
                    advantages=spread * torch.tensor(mask, dtype=torch.float32),
                )
            )
    order = torch.randperm(len(samples), generator=numbers).tolist()
    return [samples[place] for place in order]


def ours(model: Qwen3ForCausalLM, samples: Sequence[Sample], rows: int, max_tokens: int | None, folder: Path) -> Step:
    config = GRPOConfig(
        output_dir=str(folder),
        record_run=False,
        use_cpu=True,
        report_to=[],
        num_generations=GROUP,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=len(samples) // rows,
        max_completion_length=4096,
        max_tokens_per_batch=max_tokens or tokens_of_update(model),
    )
    settings, head = learning_settings(config), OutputHead.of(model)
    batches = [
        Batch.of(part, settings) for part in split_evenly([[sample] for sample in samples], len(samples) // rows)
    ]
    counts = StepCounts(
        loss_tokens=sum(batch.loss_tokens for batch in batches),
        sequences=sum(batch.sequences for batch in batches),
        batch_loss_tokens=0,
        batches=len(batches),
        processes=1,
    )

    def step() -> tuple[float, float]:
        total = torch.zeros(())
        for batch in batches:
            for micro_batch in batch.micro_batches:
                loss, _ = objective(model, micro_batch, settings, counts, head=head, with_entropy=True)
                loss.backward()
                total += loss.detach()
        return total.item(), gradient_norm(model)

    return step


def trl(model: Qwen3ForCausalLM, samples: Sequence[Sample], rows: int, max_tokens: int | None, folder: Path) -> Step:
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from trl.trainer.grpo_config import GRPOConfig as TRLConfig
    from trl.trainer.grpo_trainer import GRPOTrainer as TRLTrainer

    words = Tokenizer(WordLevel({"pad": PAD, "eos": 1, "word": 2}, unk_token="word"))
    trainer = TRLTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=TRLConfig(
            output_dir=str(folder),
            use_cpu=True,
            report_to=[],
            bf16=False,
            gradient_checkpointing=False,
            num_generations=GROUP,
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=len(samples) // rows,
            max_completion_length=4096,
            loss_type="dapo",
            beta=0.0,
        ),
        train_dataset=Dataset.from_list([{"prompt": "word"}]),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=words, pad_token="pad", eos_token="eos", unk_token="word"
        ),
    )
    trainer.current_gradient_accumulation_steps = len(samples) // rows
    prompts, completions = [sample.prompt_ids for sample in samples], [sample.completion_ids for sample in samples]
    whole = {
        "prompt_ids": padded(prompts, left=True),
        "prompt_mask": padded([[1] * len(prompt) for prompt in prompts], left=True),
        "completion_ids": padded(completions),
        "completion_mask": padded([[1] * len(completion) for completion in completions]),
        "tool_mask": padded([sample.mask for sample in samples]),
        "advantages": torch.stack([sample.advantages[0] for sample in samples if sample.advantages is not None]),
    }
    items = torch.tensor(float(sum(sum(sample.mask) for sample in samples)))
    starts = range(0, len(samples), rows)
    batches = [{name: value[start : start + rows] for name, value in whole.items()} for start in starts]

    def step() -> tuple[float, float]:
        total = torch.zeros(())
        for batch in batches:
            loss = trainer.compute_loss(model, batch | {"num_items_in_batch": items})
            loss.backward()
            total += loss.detach()
        return total.item(), gradient_norm(model)

    return step


def padded(rows: Sequence[Sequence[int]], *, left: bool = False) -> Tensor:
    length = max(map(len, rows))
    fill = [[PAD] * (length - len(row)) for row in rows]
    return torch.tensor([[*extra, *row] if left else [*row, *extra] for row, extra in zip(rows, fill, strict=True)])


def gradient_norm(model: Qwen3ForCausalLM) -> float:
    return torch.nn.utils.get_total_norm(
        [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    ).item()


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(step: Step, model: Qwen3ForCausalLM, steps: int) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    gc.collect()
    before = peak_megabytes()
    seconds: list[float] = []
    processor: list[float] = []
    first = (0.0, 0.0)
    for number in range(steps):
        started, used = time.perf_counter(), time.process_time()
        values = step()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
        processor.append(time.process_time() - used)
        first = values if number == 0 else first
    return {
        "seconds": seconds,
        "processor_seconds": processor,
        "megabytes": peak_megabytes() - before,
        "loss": first[0],
        "gradient": first[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="One optimiser step of one trainer.")
    parser.add_argument("who", choices=["ours", "trl"])
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--without-spread", type=float, required=True)
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--steps", type=int, default=1)
    arguments = parser.parse_args()
    os.environ["CI"] = "1"  # TRL then sends no telemetry
    torch.set_num_threads(1)
    shape = SHAPES[arguments.shape]
    model, samples = make_model(shape), make_samples(shape, arguments.without_spread)
    with tempfile.TemporaryDirectory() as folder:
        make = {"ours": ours, "trl": trl}[arguments.who]
        step = make(model, samples, shape.rows, arguments.max_tokens, Path(folder))
        result = measure(step, model, arguments.steps)
    print(json.dumps(result | {"parameters": sum(parameter.numel() for parameter in model.parameters())}))


if __name__ == "__main__":
    main()
