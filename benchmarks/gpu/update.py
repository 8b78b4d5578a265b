"""Optimiser steps in bfloat16 (autocast, weights in float32): gymnast's, or with all logits at once.

    python -m benchmarks.gpu.update --size 0.6B --how here|plain [--checkpointing] [--compile] [--small]

prints one line of JSON: seconds of a step (the median), tokens a second, MFU, megabytes at the peak, and the loss. 32
episodes have up to 2,048 tokens; 70 % of a completion's tokens are tool results. All variants cut them into the same
micro-batches of 8,192 tokens. Twice as many would suffice here, but not for all logits at once: by calculation those
take some 85 GB with 0.6B.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn

from gymnast.trainer import GRPOConfig
from gymnast.trainer.learning.losses import StepCounts
from gymnast.trainer.learning.objective import objective
from gymnast.trainer.learning.samples import Batch, MicroBatch, Sample
from gymnast.trainer.learning.settings import LearningSettings
from gymnast.trainer.models.output_head import OutputHead
from gymnast.trainer.options.derived import learning_settings

from .models import DEVICE, count_parameters, described, make_model, peak_megabytes, synchronize, utilisation

EPISODES, TURNS = 32, 4
ROWS = 4  # of the longest episodes in a micro-batch


def make_samples(vocabulary: int, length: int) -> list[Sample]:
    numbers = torch.Generator().manual_seed(0)

    def integers(low: int, high: int, count: int = 1) -> list[int]:
        return torch.randint(low, high, (count,), generator=numbers).tolist()

    samples = []
    for number in range(EPISODES):
        turn = integers(length // 2, length)[0] // TURNS
        sampled = round(0.3 * turn)
        mask = ([1] * sampled + [0] * (turn - sampled)) * TURNS
        samples.append(
            Sample(
                prompt_ids=integers(2, vocabulary, 64),
                completion_ids=integers(2, vocabulary, len(mask)),
                mask=mask,
                sampling_logprobs=[-1.0 if is_learned else 0.0 for is_learned in mask],
                advantages=torch.tensor(mask) * (1.0 if number % 2 else -1.0),
            )
        )
    return samples


def make_settings(max_tokens: int) -> LearningSettings:
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            record_run=False,
            use_cpu=DEVICE == "cpu",
            report_to=[],
            per_device_train_batch_size=EPISODES,
            max_completion_length=4096,
            max_tokens_per_batch=max_tokens,
        )
    return learning_settings(config)


def plain_loss(model: nn.Module, batch: MicroBatch, loss_tokens: float) -> Tensor:
    """The on-policy loss of `dapo`, from all logits in float32."""
    logits_BLV = model(**batch["inputs"], use_cache=False).logits
    keep = batch["mask"].shape[1]
    ids_BT = batch["inputs"]["input_ids"][:, -keep:]
    assert "advantages" in batch
    logprobs_BTV = logits_BLV[:, -(keep + 1) : -1].float().log_softmax(dim=-1)
    logprobs_BT = logprobs_BTV.gather(2, ids_BT[:, :, None])[:, :, 0]
    ratio_BT = (logprobs_BT - logprobs_BT.detach()).exp()
    return -(ratio_BT * batch["advantages"] * batch["mask"]).sum() / loss_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", required=True)
    parser.add_argument("--how", choices=["here", "plain"], required=True)
    parser.add_argument("--checkpointing", action="store_true", help="compute activations again in the backward pass")
    parser.add_argument("--compile", action="store_true", help="torch.compile for each layer")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    size, length, steps = ("small", 64, 1) if arguments.small else (arguments.size, 2048, 12)
    model = make_model(size).train()
    if arguments.checkpointing:
        model.gradient_checkpointing_enable()
    if arguments.compile:
        for layer in model.model.layers:  # a CPU may have no compiler: there the graphs are only traced
            layer.compile(dynamic=True, backend="inductor" if DEVICE == "cuda" else "eager")
    samples = make_samples(model.config.vocab_size, length)
    settings, head = make_settings(max_tokens=ROWS * length), OutputHead.of(model)
    batch = Batch.of([[sample] for sample in samples], settings)
    counts = StepCounts(
        loss_tokens=batch.loss_tokens, sequences=batch.sequences, batch_loss_tokens=0, batches=1, processes=1
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=DEVICE == "cuda")

    def step() -> float:
        total = torch.zeros((), device=DEVICE)
        for part in batch.micro_batches:
            inputs: Any = send_to_device(part, DEVICE)
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                if arguments.how == "here":
                    loss, _ = objective(model, inputs, settings, counts, head=head)
                else:
                    loss = plain_loss(model, inputs, batch.loss_tokens)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total.item()

    values = measure(step, steps, model, samples)
    print(json.dumps(described(values | {"max_tokens_per_batch": ROWS * length})))


def measure(step: Any, steps: int, model: nn.Module, samples: list[Sample]) -> dict[str, Any]:
    started = time.perf_counter()
    loss = step()  # the first step also allocates, tunes kernels and compiles
    first = time.perf_counter() - started
    seconds = []
    for _ in range(steps):
        synchronize()
        started = time.perf_counter()
        step()
        synchronize()
        seconds.append(time.perf_counter() - started)
    parameters, median = count_parameters(model), statistics.median(seconds)
    tokens = sum(sample.length for sample in samples) / median
    return {
        "seconds": median,
        "seconds_of_first_step": first,
        "tokens_per_second": tokens,
        **utilisation(parameters, tokens),
        "megabytes": peak_megabytes(),
        "loss": loss,
        "parameters": parameters,
    }


if __name__ == "__main__":
    main()
