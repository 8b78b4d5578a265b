"""TRL's GRPOTrainer on the rollout benchmark's work: only its generation is timed, tools included."""

from __future__ import annotations

import tempfile
import time
import warnings
from typing import Any

import datasets
from _rollout_work import blocking_look_up, latencies, rows
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

TURNS = 4


class Timed(GRPOTrainer):
    """Notes how long each batch of episodes took, from prompts to the last token."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seconds: list[float] = []
        super().__init__(*args, **kwargs)

    def _generate(self, prompts: list) -> Any:
        started = time.perf_counter()
        result = super()._generate(prompts)
        self.seconds.append(time.perf_counter() - started)
        return result


def play(model: Any, tokenizer: Any, *, episodes: int, group: int, max_tokens: int, seed: int) -> dict[str, float]:
    """Play a batch of episodes; the model is not kept as it was, as a step of training follows."""
    tokenizer.response_template = qwen3_template  # the syntax of calls, which TRL knows only by its own templates
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Timed(
            model=model,
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=episodes,
                num_generations=group,
                max_completion_length=max_tokens,
                max_tool_calling_iterations=TURNS - 1,
                max_steps=1,
                beta=0.0,
                seed=seed,
                use_cpu=True,
                report_to="none",
                disable_tqdm=True,
                save_strategy="no",
            ),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            tools=[blocking_look_up(time.sleep, latencies(seed))],
            train_dataset=datasets.Dataset.from_list(
                [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows(episodes // group, seed=seed)]
            ),
            processing_class=tokenizer,
        )
        trainer.train()
    [calls] = trainer._metrics["train"]["tools/call_frequency"] or [0.0]
    return {"seconds": trainer.seconds[0], "calls": calls * episodes}
