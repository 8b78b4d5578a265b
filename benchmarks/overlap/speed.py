"""The time of a step with a scripted generator: most of its turns are short, a few are long.

No model samples, and the update sleeps, so the figures do not depend on the machine. An update takes as long as a round
(the case in which overlap gains most), or half as long.
"""

from __future__ import annotations

import asyncio
import math
import random
import tempfile
import time
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from transformers import PrinterCallback, TrainerCallback

from gymnast.envs import Message, ToolEnv, tool, tool_call
from gymnast.trainer import Generation, GenerationRequest, Generator, GRPOConfig, GRPOTrainer
from gymnast.trainer.testing.tiny import make_tiny_model, tokenizer_for

MEDIAN, SIGMA = 0.1, 1.0  # seconds of a turn: log-normal, so one of a hundred takes ten times the median
TURNS = 4
ROUND_SECONDS = 3.0  # about the time of a round
GROUPS, MEMBERS = 4, 8
WARM_UP = 4  # steps until the pipeline is full; the same number is left out at the end, where it runs empty


class LookUp(ToolEnv):
    """Every turn looks something up; `max_turns` ends the episode."""

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        return [{"role": "user", "content": "Look it up."}]

    @tool
    def look_up(self) -> str:
        """Look it up."""
        self.reward = self.np_random.random()
        return "found"


class SlowGenerator(Generator):
    """Answers with the same call after a time that the request's seed decides."""

    def __init__(self, answer_ids: list[int]) -> None:
        self._answer_ids = answer_ids
        self._version = 0

    async def generate(self, request: GenerationRequest) -> Generation:
        await asyncio.sleep(random.Random(request.seed).lognormvariate(math.log(MEDIAN), SIGMA))
        return Generation(
            token_ids=self._answer_ids,
            logprobs=[-1.0] * len(self._answer_ids),
            finish="stop",
            prompt_ids=request.prompt.ids,
            weight_version=self._version,
        )

    def load_weights(self, model: Any, version: int) -> None:
        self._version = version

    def close(self) -> None:
        """It holds nothing open."""


class SleepingTrainer(GRPOTrainer):
    """Its updates take a given time."""

    update_seconds = 0.0

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(self.update_seconds)
        return super().compute_loss(*args, **kwargs)


class StepTimes(TrainerCallback):
    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ends.append(time.perf_counter())


def measure(max_staleness: int, update_seconds: float, *, steps: int) -> dict[str, float]:
    """Mean seconds of a step, and the metrics of the overlap."""
    schemas = LookUp().tool_schemas()
    conversation: Any = [{"role": "user", "content": "Look it up."}, tool_call("look_up")]
    tokenizer = tokenizer_for([(conversation, schemas)] * 3)
    call = '<tool_call>\n{"name": "look_up", "arguments": {}}\n</tool_call><|im_end|>'
    clock = StepTimes()
    with tempfile.TemporaryDirectory() as folder:
        trainer = SleepingTrainer(
            model=make_tiny_model(tokenizer, hidden_size=32, num_layers=1),
            processing_class=tokenizer,
            environment=LookUp(),
            generator=SlowGenerator(tokenizer.encode(call, add_special_tokens=False)),
            train_dataset=[{"id": index} for index in range(64)],
            callbacks=[clock],
            args=GRPOConfig(
                output_dir=folder,
                record_run=False,
                max_staleness=max_staleness,
                max_steps=steps,
                per_device_train_batch_size=GROUPS * MEMBERS,
                num_generations=MEMBERS,
                max_turns=TURNS,
                max_completion_length=512,
                learning_rate=0.0,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            ),
        )
        trainer.update_seconds = update_seconds
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return summary(clock.ends, trainer.state.log_history)


def summary(ends: list[float], history: list[dict[str, Any]]) -> dict[str, float]:
    last = len(ends) - WARM_UP
    logs = [entry for entry in history if WARM_UP < entry["step"] <= last and "reward" in entry]
    names = ("time/rollout", "time/update", "staleness/mean", "staleness/max", "staleness/late")
    names += ("idle/trainer", "idle/generator", "groups/in_flight")
    means = {name: round(fmean(entry[name] for entry in logs), 3) for name in names if name in logs[0]}
    return {"seconds a step": round((ends[last - 1] - ends[WARM_UP - 1]) / (last - WARM_UP), 3)} | means


def speeds(bounds: list[int], *, steps: int) -> list[dict[str, Any]]:
    """Each bound with each length of an update; `ratio` compares a step with the longer one of its two parts."""
    found = []
    for share in (0.5, 1.0):
        rows = [
            {"max_staleness": bound, "update is": share} | measure(bound, share * ROUND_SECONDS, steps=steps)
            for bound in bounds
        ]
        longer = max(rows[0]["time/rollout"], rows[0]["time/update"])  # of the synchronous training
        found += [row | {"ratio": round(row["seconds a step"] / longer, 3)} for row in rows]
    return found
