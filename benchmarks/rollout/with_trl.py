"""TRL's GRPOTrainer on the rollout benchmark's work: only its generation is timed, tools included."""

from __future__ import annotations

import tempfile
import time
import warnings
from functools import partial
from typing import Any

import datasets
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

from .timeline import EPISODE, Timeline
from .work import blocking_look_up, latencies, rows

TURNS = 4


class WatchedTrainer(GRPOTrainer):
    """Records what each episode of its only batch does at each moment, from the prompt to the last token."""

    def __init__(self, timeline: Timeline, *args: Any, **kwargs: Any) -> None:
        self._timeline = timeline
        super().__init__(*args, **kwargs)

    def _generate(self, prompts: list) -> Any:
        self._watch_tools()
        self._conversations: list[list[Any]] = []
        self._timeline.start()
        result = super()._generate(prompts)
        self._timeline.stop()
        return result

    def _watch_tools(self) -> None:
        """Every row has a table of tools of its own, so a tool can be told for which row it is called."""

        def call(row: int, function: Any, **arguments: Any) -> Any:
            EPISODE.set(row)
            return function(**arguments)

        for row, tools in enumerate(self._sync_tool_dicts):
            tools |= {name: partial(call, row, function) for name, function in tools.items()}

    def _tool_call_loop(self, *args: Any, **kwargs: Any) -> Any:
        _, _, _, self._conversations, *_ = args  # which the loop extends in place
        self._lengths = list(map(len, self._conversations))
        return super()._tool_call_loop(*args, **kwargs)

    def _generate_single_turn(self, prompt_ids: list, *args: Any, **kwargs: Any) -> Any:
        """A row generates until its last token; then it waits for the longest row of the batch."""
        rows = self._rows_to_generate(len(prompt_ids))
        steps: list[float] = []  # when each token's forward pass began
        model: Any = self.model
        started = time.perf_counter()
        watch = model.register_forward_pre_hook(lambda *_: steps.append(time.perf_counter()))
        try:
            answer = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        finally:
            watch.remove()
        steps.append(time.perf_counter())
        for row, tokens in zip(rows, answer[0], strict=True):
            self._timeline.add(row, "generation", started, steps[len(tokens)])
        return answer

    def _rows_to_generate(self, count: int) -> list[int]:
        """Return all rows at first, later those whose conversation got a tool's answer."""
        if not self._conversations:
            return list(range(count))
        lengths, self._lengths = self._lengths, list(map(len, self._conversations))
        told = [row for row, said in enumerate(self._conversations) if said[-1]["role"] == "tool"]
        return [row for row in told if self._lengths[row] > lengths[row]]


def play(model: Any, tokenizer: Any, *, episodes: int, group: int, max_tokens: int, seed: int) -> Timeline:
    """Play a batch of episodes; the model is not kept as it was, as a step of training follows."""
    timeline = Timeline()
    tokenizer.response_template = qwen3_template  # the syntax of calls, which TRL knows only by its own templates
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = WatchedTrainer(
            timeline,
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
            tools=[blocking_look_up(timeline.sleep, latencies(seed))],
            train_dataset=datasets.Dataset.from_list(
                [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows(episodes // group, seed=seed)]
            ),
            processing_class=tokenizer,
        )
        trainer.train()
    return timeline
