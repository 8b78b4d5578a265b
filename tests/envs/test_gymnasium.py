"""An `Environment` is a `gymnasium.Env`, and its spaces are spaces of chat messages."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from gymnast.envs import Calculator, StopReason, ToolEnv, tool, tool_call

from .guessing import AsyncGuess, Guess, say
from .toolkit import run_python


def test_spaces_contain_messages() -> None:
    environment = Guess()
    assert environment.action_space.contains(tool_call("add", a=1, b=2))
    assert environment.action_space.contains({"role": "user", "content": [{"type": "text", "text": "hi"}]})
    assert environment.action_space.contains({"role": "assistant", "content": None})
    assert environment.observation_space.contains([])
    assert environment.observation_space.contains([say("a"), say("b")])
    assert not environment.observation_space.contains(say("a"))


@pytest.mark.parametrize(
    "wrong",
    [
        "hello",
        {"content": "no role"},
        {"role": "robot", "content": ""},
        {"role": ["user"], "content": ""},
        {"role": "user", "content": 3},
        {"role": "user", "content": ["text"]},
        {"role": "assistant", "tool_calls": {"function": {}}},
        {"role": "assistant", "tool_calls": [{"function": {"name": "add"}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": 3, "arguments": {}}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": [1]}}]},
    ],
)
def test_spaces_refuse_values_that_are_not_messages(wrong: Any) -> None:
    environment = Guess()
    assert not environment.action_space.contains(wrong)
    assert not environment.observation_space.contains([wrong])


def test_spaces_sample_by_seed_and_compare_by_kind() -> None:
    one, other = Guess(), AsyncGuess()
    for space, same in ((one.action_space, other.action_space), (one.observation_space, other.observation_space)):
        space.seed(3)
        first = [space.sample() for _ in range(5)]
        space.seed(3)
        assert [space.sample() for _ in range(5)] == first
        assert all(map(space.contains, first))
        assert len({str(sample) for sample in first}) == 5
        assert space == same
        assert hash(space) == hash(same)
        with pytest.raises(ValueError, match="no finite set"):
            space.sample(mask=[1])
    assert one.action_space != one.observation_space


def test_gymnasium_makes_the_calculator() -> None:
    environment = gymnasium.make("gymnast/Calculator-v0")
    try:
        messages, _ = environment.reset(seed=1)
        assert messages[0]["role"] == "user"
        answer = environment.unwrapped.expected  # type: ignore[attr-defined]
        _, reward, terminated, truncated, info = environment.step(tool_call("final_answer", answer=answer))
        assert (reward, terminated, truncated) == (1.0, True, False)
        assert info["stop_reason"] is StopReason.FINAL_ANSWER
    finally:
        environment.close()


def test_gymnasium_makes_the_calculator_by_module_and_id() -> None:
    program = """
import gymnasium, sys
environment = gymnasium.make("gymnast.envs:gymnast/Calculator-v0")
messages, _ = environment.reset(seed=0, options={"task": {"question": "What is 1 plus 1?", "answer": 2}})
call = {"function": {"name": "final_answer", "arguments": {"answer": 2}}}
print(messages[0]["content"], environment.step({"role": "assistant", "tool_calls": [call]})[1])
environment.close()
assert "torch" not in sys.modules
"""
    result = run_python(program)
    assert (result.returncode, result.stdout, result.stderr) == (0, "What is 1 plus 1? 1.0\n", "")


class NotedTool(ToolEnv):
    """A tool environment of the smallest kind."""

    @tool
    def note(self) -> str:
        """Note something."""
        return "noted"


def test_env_checker_passes() -> None:
    gymnasium.register("gymnast-test/Guess-v0", lambda **kwargs: Guess(**kwargs))
    gymnasium.register("gymnast-test/AsyncGuess-v0", lambda **kwargs: AsyncGuess(**kwargs))
    gymnasium.register(
        "gymnast-test/NotedTool-v0", lambda **kwargs: NotedTool(tasks=[{"prompt": "a"}, {"prompt": "b"}], **kwargs)
    )
    for name in (
        "gymnast/Calculator-v0",
        *(f"gymnast-test/{item}-v0" for item in ("Guess", "AsyncGuess", "NotedTool")),
    ):
        environment = gymnasium.make(name).unwrapped
        check_env(environment)  # warnings are errors here
        environment.close()


def test_time_limit_truncates() -> None:
    environment = TimeLimit(Calculator(), 2)
    environment.reset(seed=0)
    assert environment.step(tool_call("add", a=1, b=2))[2:4] == (False, False)
    messages, _, terminated, truncated, _ = environment.step(tool_call("add", a=1, b=2))
    assert (messages[0]["content"], terminated, truncated) == ("3", False, True)
    environment.close()


def test_statistics_are_recorded() -> None:
    environment = RecordEpisodeStatistics(AsyncGuess())
    environment.reset(seed=0)
    environment.step(say("nothing"))
    *_, info = environment.step(say("0123456789"))
    assert (info["episode"]["r"], info["episode"]["l"]) == (1.0, 2)
    environment.close()
