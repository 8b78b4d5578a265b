"""Alarms as metrics: every log of a training has them, so that back ends show them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import tool
from gymnast.records import Run, find_alarms
from gymnast.records.alarms.alarms import CHECKS, alarm_metrics, repeated

from ..cli.made_runs import write_run
from .buttons import Buttons, ShiftedGenerator, make_trainer, model
from .inspecting import step_logs

NAMES = {f"alarms/{kind.replace(' ', '_')}" for kind in CHECKS}


def raised(history: list[Any]) -> list[str]:
    """The names of the alarms that a training raises at the last of these logs."""
    metrics = alarm_metrics(history[:-1], history[-1], {}, warns=False)
    return [name.removeprefix("alarms/") for name, value in metrics.items() if value]


def logs(name: str, *values: float) -> list[dict[str, float]]:
    return [{"step": step, "reward": 0.5, "loss": 0.0, name: value} for step, value in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("name", "history"),
    [
        ("failures", logs("episodes/failed", 0, 2)),
        ("no_spread", logs("frac_reward_zero_std", 0.2, 0.5, 0.6, 0.6, 0.9)),
        ("truncation", logs("stop/max_tokens", 0.1, 0.3)),
        ("stop_reasons", logs("stop/model_stopped", 0, 0, 0.2, 0.3, 0.5)),
        ("gap", logs("sampling/sampling_logp_difference/mean", 0.001, 0.01, 0.02, 0.03, 0.05)),
        ("sample_size", logs("mismatch/ess", 0.9, 0.8, 0.4, 0.4, 0.2)),
        ("rejected", logs("mismatch/rejected", 0.1, 0.8)),
        ("length", logs("completions/mean_length", 10, 12, 20, 30, 90)),
    ],
)
def test_an_alarm_is_raised_by_its_metric_and_goes_when_that_is_well(
    name: str, history: list[Any], tmp_path: Path
) -> None:
    assert raised(history) == [name]
    assert raised(history[:1]) == []
    run = Run(write_run(tmp_path, metrics=history))
    assert [alarm.kind.replace(" ", "_") for alarm in find_alarms(run)] == [name]


@pytest.mark.parametrize(
    ("flat", "rewards", "deviation"),
    [
        ([0.2, 0.5, 0.6, 0.6, 0.9], [0.3, 0.4, 0.5, 0.8, 0.9], 0.4),
        ([0.1, 0.4, 0.7, 0.7, 0.9], [0.5, 0.7, 0.9, 0.95, 0.98], 0.5),
        ([0.7] * 100, [0.35] * 5 + [0.9] * 95, 0.48),
    ],
    ids=["risen", "from one half", "within the first fifth"],
)
def test_equal_groups_are_no_alarm_once_the_reward_has_risen(
    flat: list[float], rewards: list[float], deviation: float
) -> None:
    history = [
        log | {"reward": reward, "reward_std": deviation}
        for log, reward in zip(logs("frac_reward_zero_std", *flat), rewards, strict=True)
    ]
    assert raised(history) == []
    assert raised([log | {"reward": 0.45} for log in history]) == ["no_spread"]


def test_errors_that_differ_in_a_number_are_the_same() -> None:
    messages = ["7 is too high", "9.5 is too high", "12 is too high"]
    assert repeated(("guess", "refused", message) for message in messages) == [
        (("guess", "refused", "# is too high"), 3)
    ]
    assert not repeated(("guess", "refused", item) for item in ["too high", "too low", "too long"])


def test_a_sample_size_that_stays_low_warns_once_a_run(caplog: pytest.LogCaptureFixture) -> None:
    history: list[dict[str, float]] = []
    for number, log in enumerate(logs("mismatch/ess", 0.4, 0.3, 0.9, 0.4, 0.4, 0.2, 0.2)):
        assert bool(caplog.messages) == (number > 5)
        history.append(log | alarm_metrics(history, log, {}, warns=True))
    [message] = caplog.messages
    assert message.startswith("the effective sample size is 0.20, and was below 0.5 in 3 logs in a row. The generator")


def test_a_gap_that_was_warned_of_hides_no_low_sample_size(caplog: pytest.LogCaptureFixture) -> None:
    history: list[dict[str, float]] = []
    gaps = logs("sampling/sampling_logp_difference/mean", 0.001, 0.01, 0.02, 0.03, 0.05, 0.05, 0.05, 0.05)
    for gap, size in zip(gaps, (0.9, 0.9, 0.9, 0.9, 0.9, 0.4, 0.4, 0.2), strict=True):
        log = gap | {"mismatch/ess": size}
        history.append(log | alarm_metrics(history, log, {}, warns=True))
    gap_warning, size_warning = caplog.messages
    assert gap_warning.startswith("the generator's log-probabilities differ")
    assert size_warning.startswith("the effective sample size is 0.20")


def test_a_correction_that_removes_most_episodes_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agent = model()
    generator = ShiftedGenerator(agent)
    trainer = make_trainer(tmp_path, agent=agent, generator=generator, correction="geometric_mask", max_steps=2)
    trainer.train()
    for log in step_logs(trainer):
        assert log["alarms/rejected"] == float(log["mismatch/rejected"] > 0.5) == 1.0
    assert sum("correction='geometric_mask' removed" in message for message in caplog.messages) == 1


class Useless(Buttons):
    """Rewards nothing, and has a tool that breaks."""

    @tool
    def look(self) -> str:
        """Look at the buttons."""
        raise ValueError("no light\nin here")

    @tool(final=True)
    def left(self) -> str:
        """Press the left button."""
        return "done"

    @tool(final=True)
    def right(self) -> str:
        """Press the right button."""
        return "done"


def test_a_training_logs_every_alarm(tmp_path: Path) -> None:
    healthy = make_trainer(tmp_path / "healthy", max_steps=2)
    healthy.train()
    sick = make_trainer(tmp_path / "sick", environment=Useless(), max_steps=2)
    sick.train()
    for log in (*step_logs(healthy), *step_logs(sick)):
        assert {name for name in log if name.startswith("alarms/")} == NAMES
        assert {log[name] for name in NAMES} <= {0.0, 1.0}
    assert [log["alarms/no_spread"] for log in step_logs(sick)] == [1.0, 1.0]
    assert step_logs(healthy)[0]["alarms/no_spread"] == float(step_logs(healthy)[0]["frac_reward_zero_std"] > 0.5)
    looks = [round(log["tools/look/failures"] * log["episodes/played"]) for log in step_logs(sick)]
    assert [log["alarms/tool_errors"] for log in step_logs(sick)] == [float(count >= 3) for count in looks]
    assert max(looks) >= 3
