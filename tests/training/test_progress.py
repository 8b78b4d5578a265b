"""The display of a training, on a terminal and in a log file."""

from __future__ import annotations

import ast
import asyncio
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import TrainerCallback, TrainerControl, TrainerState

from gymnast.envs import tool
from gymnast.trainer import RichProgress, RolloutError

from .buttons import ROWS, Buttons, config, make_trainer


def test_progress_on_a_terminal(tmp_path: Path) -> None:
    console = Console(force_terminal=True, record=True, width=160, file=(tmp_path / "terminal").open("w"))
    progress = RichProgress(console)
    make_trainer(tmp_path, callbacks=[progress], max_steps=3).train()
    console.file.close()
    text = console.export_text()
    for shown in ("training", "3/3", "reward", "success", "tool calls", "failures", "tokens/s", "left"):
        assert shown in text
    assert "\x1b[?25h" in (tmp_path / "terminal").read_text()  # the cursor is shown again


def test_the_live_display_ends_with_an_error(tmp_path: Path) -> None:
    console = Console(force_terminal=True, width=160, file=(tmp_path / "terminal").open("w"))

    def broken(completions: Any) -> list[float]:
        raise RuntimeError("the reward broke")

    with pytest.raises(RolloutError, match="the reward broke"):
        make_trainer(tmp_path, callbacks=[RichProgress(console)], reward_funcs=broken, max_steps=5).train()
    console.file.close()
    assert "\x1b[?25h" in (tmp_path / "terminal").read_text()


def test_progress_in_a_log_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(force_terminal=False, record=True, width=160, file=(tmp_path / "log").open("w"))
    make_trainer(tmp_path, callbacks=[RichProgress(console)], max_steps=3).train()
    console.file.close()
    lines = console.export_text().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 1/3", "step 3/3"]  # the first, the last, and each 10 s
    assert all("reward" in line and "tokens/s" in line for line in lines)
    assert "loss" not in capsys.readouterr().out  # transformers' own printing is off


def test_evaluations_in_a_log_file(tmp_path: Path) -> None:
    console = Console(force_terminal=False, record=True, width=160, file=(tmp_path / "log").open("w"))
    options: dict[str, Any] = {"eval_rows": {"easy": ROWS[:1], "hard": ROWS[1:]}, "eval_strategy": "steps"}
    trainer = make_trainer(tmp_path, callbacks=[RichProgress(console)], max_steps=2, eval_steps=2, **options)
    trainer.train()
    trainer.evaluate(ROWS[:1])
    console.file.close()
    shown = [line for line in console.export_text().splitlines() if line.startswith("evaluation")]
    outcome = r"at step 2  reward [\d.]+  pass@1 [\d.]+  ends final_answer \d+%"
    for line, data_set in zip(shown, ("on easy ", "on hard ", ""), strict=True):
        assert re.match(f"evaluation {data_set}{outcome}", line)


class Watches(TrainerCallback):
    """Notes at each step how far a bar has come."""

    def __init__(self, progress: RichProgress) -> None:
        self.progress = progress
        self.completed: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.completed.append(self.progress.bar.tasks[0].completed)


def test_progress_does_not_wait_for_a_log(tmp_path: Path) -> None:
    with (tmp_path / "terminal").open("w") as file:
        progress = RichProgress(Console(force_terminal=True, width=160, file=file))
        watches = Watches(progress)
        make_trainer(tmp_path, callbacks=[progress, watches], max_steps=3, logging_steps=10).train()
    assert watches.completed == [1, 2, 3]


def test_progress_shows_the_failures_so_far(tmp_path: Path) -> None:
    console = Console(force_terminal=False, record=True, width=160, file=(tmp_path / "log").open("w"))
    progress, args = RichProgress(console), config(tmp_path)
    state, control = TrainerState(max_steps=2, global_step=1, is_world_process_zero=True), TrainerControl()
    for _ in range(2):  # the second training begins anew
        state.global_step = 1
        progress.on_train_begin(args, state, control)
        for state.global_step, failed in ((1, 2.0), (2, 3.0)):
            progress.on_log(args, state, control, logs={"reward": 0.5, "episodes/failed": failed})
    console.file.close()
    shown = [line.partition("failures ")[2].split()[0] for line in console.export_text().splitlines()]
    assert shown == ["2", "5", "2", "5"]


@pytest.mark.parametrize("on_failure", ["drop", "retry(1)"])
@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_the_reason_of_failures(terminal: bool, on_failure: str, tmp_path: Path) -> None:
    """It shows them without any other output, and also if another attempt succeeded."""
    broken: set[str] = set()

    class Breaks(Buttons):
        async def areset(self, *, seed: int | None = None, options: Any = None) -> Any:
            if trainer is not None and str(seed) not in broken:  # the first member of each group
                broken.add(str(seed))
                raise OSError("the database [is] down")
            return await super().areset(seed=seed, options=options)

    trainer: Any = None  # making the trainer resets the first row
    with (tmp_path / "log").open("w") as file:
        console = Console(force_terminal=terminal, record=True, width=160, file=file)
        trainer = make_trainer(tmp_path, callbacks=[RichProgress(console)], environment=Breaks, on_failure=on_failure)
        trainer.train()
    assert len(broken) > 1
    assert "latest failure: reset: OSError: the database [is] down" in console.export_text()


def test_transformers_prints_without_a_display(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer(
        tmp_path, callbacks=Watches(RichProgress()), eval_rows=ROWS, eval_strategy="steps", eval_steps=1
    ).train()
    step, evaluation, *_ = capsys.readouterr().out.splitlines()
    assert {"loss", "reward", "frac_reward_zero_std", "stop/final_answer"} <= set(ast.literal_eval(step))
    assert {"eval_reward", "eval_stop/final_answer"} <= set(ast.literal_eval(evaluation))
    for line in (step, evaluation):
        assert len(ast.literal_eval(line)) < 24
        assert "stop/malformed" not in line  # there was no display


def test_transformers_prints_evaluations_of_several_data_sets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trainer(tmp_path, eval_rows={"easy": ROWS[:1], "hard": ROWS[1:]}).evaluate()
    easy, hard, *_ = (ast.literal_eval(line) for line in capsys.readouterr().out.splitlines())
    assert {"eval_easy_reward", "eval_easy_stop/final_answer", "eval_easy_runtime"} <= set(easy)
    assert {"eval_hard_reward", "eval_hard_stop/final_answer", "eval_hard_runtime"} <= set(hard)
    assert len(easy) < 24


class Blocks(Buttons):
    """Waits in its tools until the terminal shows them."""

    shown: Callable[[str], bool] = staticmethod(lambda text: True)

    @tool(final=True)
    async def left(self) -> str:  # type: ignore[override]
        """Press the left button."""
        await until(lambda: type(self).shown(" in tool left"))
        self.reward = float(self.good == "left")
        return "done"


class AwaitsEvaluation(TrainerCallback):
    """Lets the training go on when the terminal shows the outcome of an evaluation."""

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        asyncio.run(until(lambda: Blocks.shown("pass@1")))


async def until(happens: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not happens():  # noqa: ASYNC110  (another thread writes)
            await asyncio.sleep(0.01)


def test_a_terminal_shows_where_the_episodes_are_and_the_latest_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(Blocks, "shown", staticmethod(lambda text: text in terminal.getvalue()))
    console = Console(force_terminal=True, width=160, file=terminal)
    options: dict[str, Any] = {"eval_rows": ROWS[:1], "eval_strategy": "steps", "eval_steps": 1}
    callbacks = [RichProgress(console), AwaitsEvaluation()]
    make_trainer(tmp_path, environment=Blocks(), callbacks=callbacks, max_steps=2, **options).train()
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", terminal.getvalue())
    assert re.search(r"\d of 8 episodes are over, .*\d in tool left", text)
    assert re.search(r"evaluation at step 1  reward [\d.]+  pass@1 [\d.]+  ends final_answer \d+%", text)
    assert re.search(r"reward -?\d\.\d{3}  .*ends \w+ \d+%", text)
