"""Sampling without vLLM: long rows, groups and turns, beside `generate` of transformers and TRL's own path.

    python -m benchmarks.generation [--quick]

A model of 11 M parameters with random weights, one thread; processor seconds, because they do not depend on what else
the machine does. TRL plays the turns of a batch in step, and each turn through `GRPOTrainer._generate_single_turn`. It
prints a table and writes benchmarks/results/generation.json. It fails if a log-probability is not that of one forward
pass, or a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from gymnast.envs.tokens import Tokens
from gymnast.trainer import Generation, GenerationRequest, Sampling, TransformersGenerator
from gymnast.trainer.testing.tiny import make_tiny_tokenizer

RESULTS = Path(__file__).parents[1] / "results" / "generation.json"
VOCABULARY = 8192
TOLERANCE = 1e-5
TARGETS = {"a long row among short ones": 1.3, "six turns": 0.45}  # of the reference, which is measured beside it
NO_LOSS = 1.15  # the target of the others, whose reference does the same work


@dataclass(frozen=True)
class Work:
    """Conversations that are answered together, turn by turn."""

    prompts: list[list[int]]
    sampled: int  # tokens a turn
    turns: int = 1
    observed: int = 0  # tokens after each turn


Player = Callable[[list[list[int]], int], list[list[int]]]  # prompts and a number of tokens -> the sampled tokens


def random_ids(rows: int, length: int, seed: int = 0) -> list[list[int]]:
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed)).tolist()


def works(quick: bool) -> dict[str, Work]:
    one = 10 if quick else 1
    equal, short, observed, prompt = 128 // one, 200 // one, 250 // one, 512 // one
    many, few = (4, 2) if quick else (64, 16)
    return {
        "16 prompts of one length": Work(random_ids(16, equal), many),
        "4 groups of 8": Work([ids for ids in random_ids(4, prompt) for _ in range(8)], few),
        "a long row among short ones": Work([*random_ids(7, short), *random_ids(1, 10 * short)], min(few, 8)),
        "six turns": Work(random_ids(6, observed), few, turns=6, observed=observed),
    }


def make_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=320,
        intermediate_size=1280,
        num_hidden_layers=4,
        num_attention_heads=5,
        num_key_value_heads=5,
        head_dim=64,
        max_position_embeddings=4096,
        eos_token_id=1,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config).eval()


class Session:
    """One conversation, by its identity."""


async def play_here(model: Any, work: Work, *, sessions: bool = True) -> list[Generation]:
    """Play each conversation at its own pace; without sessions, each turn is prefilled from its first token."""
    generator = TransformersGenerator(model)

    async def converse(ids: list[int], seed: int) -> list[Generation]:
        found: list[Generation] = []
        session = Session() if sessions else None
        for turn in range(work.turns):
            options: Any = {"stop_ids": frozenset[int](), "sampling": Sampling(), "session": session}
            prompt, number = Tokens(ids), 1000 * turn + seed
            request = GenerationRequest(prompt=prompt, max_tokens=work.sampled, seed=number, **options)
            found.append(await generator.generate(request))
            ids = ids + found[-1].token_ids + random_ids(1, work.observed, seed=number)[0]
        return found

    try:
        found = await asyncio.gather(*[converse(ids, seed) for seed, ids in enumerate(work.prompts)])
    finally:
        generator.close()
    return [answer for answers in found for answer in answers]


def worst_difference(model: Any, answers: list[Generation]) -> float:
    """The largest difference of a log-probability from that of one forward pass without a cache."""
    worst = 0.0
    for answer in answers:
        ids_1L = torch.tensor([answer.prompt_ids + answer.token_ids])
        with torch.no_grad():
            logits_LV = model(input_ids=ids_1L, use_cache=False).logits[0, len(answer.prompt_ids) - 1 : -1]
        expected_T = logits_LV.log_softmax(-1).gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
        worst = max(worst, float((expected_T - torch.tensor(answer.logprobs)).abs().max()))
    return worst


def in_step(work: Work, answer: Player) -> None:
    """Play the turns of all conversations in step."""
    histories = work.prompts
    for turn in range(work.turns):
        sampled = answer(histories, work.sampled)
        observed = random_ids(len(histories), work.observed, seed=turn)
        histories = [[*ids, *new, *after] for ids, new, after in zip(histories, sampled, observed, strict=True)]


def with_generate(model: Any) -> Player:
    def answer(prompts: list[list[int]], count: int) -> list[list[int]]:
        length = max(map(len, prompts))
        ids_BL = torch.tensor([[0] * (length - len(ids)) + ids for ids in prompts])
        options: Any = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": True, "top_k": 0}
        return model.generate(ids_BL, attention_mask=(ids_BL != 0).long(), **options)[:, length:].tolist()

    return answer


def with_trl(model: Any, folder: str) -> Player:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(output_dir=folder, use_cpu=True, report_to="none", bf16=False, num_generations=2)
    trainer: Any = GRPOTrainer(
        model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "x"}]),
        processing_class=make_tiny_tokenizer(["x"], vocab_size=280),
    )

    def answer(prompts: list[list[int]], count: int) -> list[list[int]]:
        trainer.generation_config.max_new_tokens = trainer.generation_config.min_new_tokens = count
        sampled, _ = trainer._generate_single_turn(prompts, None, {}, 1)
        assert [len(ids) for ids in sampled] == [count] * len(prompts)
        return sampled

    return answer


def processor_seconds(repeats: int, *variants: Callable[[], Any]) -> list[float]:
    """The least processor seconds of each variant; they take turns, so a busy moment hits all of them."""
    seconds = [float("inf")] * len(variants)
    for _ in range(repeats):
        for index, variant in enumerate(variants):
            started = time.process_time()
            variant()
            seconds[index] = min(seconds[index], time.process_time() - started)
    return seconds


def measure(works: dict[str, Work], repeats: int) -> Iterator[dict[str, Any]]:
    model = make_model()
    with tempfile.TemporaryDirectory() as folder:
        generate, trl = with_generate(model), with_trl(make_model(), folder)
        for name, work in works.items():
            apart = [work]
            if name == "a long row among short ones":
                apart = [Work(work.prompts[:-1], work.sampled), Work(work.prompts[-1:], work.sampled)]

            def reference(parts: list[Work] = apart) -> None:
                for part in parts:
                    asyncio.run(play_here(model, part, sessions=False))

            here, other, plain, theirs = processor_seconds(
                repeats,
                lambda work=work: asyncio.run(play_here(model, work)),
                reference,
                lambda work=work: in_step(work, generate),
                lambda work=work: in_step(work, trl),
            )
            row = {"here": here, "reference": other, "generate": plain, "trl": theirs}
            row |= {"of_reference": here / other, "of_generate": here / plain, "of_trl": here / theirs}
            rounded = {key: round(value, 3) for key, value in row.items()}
            worst = worst_difference(model, asyncio.run(play_here(model, work)))
            yield {"name": name, **rounded, "worst_difference": worst}


def complaints(row: dict[str, Any], *, with_targets: bool) -> list[str]:
    name, found = row["name"], []
    if row["worst_difference"] > TOLERANCE:
        found.append(f"{name}: a log-probability is {row['worst_difference']:.1e} away from that of one forward pass")
    target = TARGETS.get(name, NO_LOSS)
    if with_targets and row["of_reference"] > target:
        found.append(f"{name}: {row['of_reference']:.2f} of the reference, the target is {target}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="few tokens, no targets, and no file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "processor seconds; reference: each turn from its first token, and the long row apart from the short ones; "
        f"targets of it: {TARGETS}, others {NO_LOSS}"
    )
    print(f"{'':<28} {'here':>7} {'reference':>9} {'generate':>9} {'TRL':>7}   here, of the three       worst")
    rows: list[dict[str, Any]] = []
    wrong: list[str] = []
    for row in measure(works(arguments.quick), repeats=1 if arguments.quick else 3):
        rows.append(row)
        wrong += complaints(row, with_targets=not arguments.quick)
        seconds = f"{row['here']:>7.2f} {row['reference']:>9.2f} {row['generate']:>9.2f} {row['trl']:>7.2f}"
        ratios = f"{row['of_reference']:>5.2f} {row['of_generate']:>5.2f} {row['of_trl']:>5.2f}"
        print(f"{row['name']:<28} {seconds}   {ratios}   {row['worst_difference']:>10.1e}", flush=True)
    if not arguments.quick:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        versions = {name: version(name) for name in ("trl", "torch", "transformers")}
        result = {"machine": machine, "versions": versions, "results": rows}
        arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
