"""The reward, the end and the metrics of a step: which step they belong to, and which values are refused."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from gymnast.envs import Calculator, ConfigurationError, Message, StopReason, ToolEnv, tool, tool_call

from .tool_env_steps import QUESTION, begin, contents


class Late(ToolEnv):
    """Has a tool that keeps running after its timeout."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on, self.has_gone_on = threading.Event(), threading.Event()

    @tool(timeout=0.01)
    def slow(self) -> None:
        """Take too long."""
        assert self.may_go_on.wait(30)
        self.reward, self.terminated = 5.0, True
        self.has_gone_on.set()

    @tool
    def quick(self) -> None:
        """Let the slow tool go on."""
        self.reward = 1.0
        self.let_go_on()

    def let_go_on(self) -> None:
        self.may_go_on.set()
        assert self.has_gone_on.wait(30)


@pytest.mark.parametrize("between", [False, True], ids=["in the next step", "between two steps"])
def test_a_tool_that_ran_out_of_time_rewards_no_later_step(between: bool) -> None:
    environment = Late()
    begin(environment)
    assert "did not finish" in contents(environment.step(tool_call("slow")))[0]
    if between:
        environment.let_go_on()
    result = environment.step(tool_call("quick"))
    assert (result.reward, result.terminated) == (1.0, False)
    assert (environment.reward, environment.terminated) == (1.0, False)


def test_a_reward_is_a_number_and_belongs_to_a_step() -> None:
    class Wrong(ToolEnv):
        @tool
        def text(self) -> None:
            """Give a text as reward."""
            self.reward = "1.0"  # type: ignore[assignment]

    environment = Wrong()
    begin(environment)
    with pytest.raises(ConfigurationError, match=r"Wrong: self\.reward must be a number, got str: '1\.0'"):
        environment.step(tool_call("text"))
    with pytest.raises(ConfigurationError, match=r"set it in a tool or in reply\(\); grade\(\) returns the reward"):
        environment.reward = 1.0


def test_an_end_and_metrics_may_be_set_outside_a_step() -> None:
    class Hopeless(ToolEnv):
        def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
            self.terminated = task.get("hopeless", False)
            self.metrics["hopeless"] = float(self.terminated)
            return [{"role": "user", "content": "go"}]

        @tool
        def look(self) -> None:
            """Look."""

    environment = Hopeless()
    _, info = environment.reset(options={"task": {"hopeless": True}})
    assert info == {"metrics": {"hopeless": 1.0}}
    assert environment.step(tool_call("look")).info["stop_reason"] is StopReason.ENV_TERMINATED
    begin(environment)
    assert not environment.step(tool_call("look")).terminated
    environment.terminated = True
    assert environment.step(tool_call("look")).terminated


def test_an_environment_within_a_tool_has_its_own_score() -> None:
    class Outer(ToolEnv):
        @tool
        async def ask(self) -> None:
            """Ask a calculator."""
            inner = Calculator()
            await inner.areset(options={"task": QUESTION})
            assert (await inner.astep(tool_call("final_answer", answer=6))).reward == 1.0
            self.metrics["asked"] = 1.0

    environment = Outer()
    begin(environment)
    result = environment.step(tool_call("ask"))
    assert (result.reward, result.terminated, result.info["metrics"]) == (0.0, False, {"asked": 1.0})
