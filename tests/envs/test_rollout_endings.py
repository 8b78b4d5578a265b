"""How episodes end, and how their records show it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from gymnast.envs import (
    Calculator,
    Environment,
    Episode,
    EpisodeLimits,
    Message,
    RolloutEngine,
    ScriptedPolicy,
    StepResult,
    StopReason,
    tool_call,
    tool_calls,
)

from .episodes import ADD, ANSWER, Ender, Log, Probe, play_one, specs, tool_contents

MALFORMED: Message = {"role": "assistant", "content": "x", "malformed": [{"text": "x", "error": "bad"}]}

# --- endings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "script", "limits", "stop"),
    [
        (Calculator(), [ADD, ANSWER], {}, StopReason.FINAL_ANSWER),
        (Calculator(), [ADD, "It is 3."], {}, StopReason.MODEL_STOPPED),
        (Calculator(), [MALFORMED] * 3, {}, StopReason.MALFORMED),
        (Calculator(on_malformed="end"), [MALFORMED], {}, StopReason.MALFORMED),
        (Ender(True), ["x"], {}, StopReason.ENV_TERMINATED),
        (Ender(np.True_, np.False_), ["x"], {}, StopReason.ENV_TERMINATED),
        (Ender(False, True), ["x"], {}, StopReason.ENV_TRUNCATED),
        (Ender(True, True), ["x"], {}, StopReason.ENV_TERMINATED),
        (Ender(False, True, stop_reason="context_overflow"), ["x"], {}, StopReason.CONTEXT_OVERFLOW),
        (Ender(True, stop_reason="model_stopped"), ["x"], {}, StopReason.MODEL_STOPPED),
        (TimeLimit(Calculator(), 2), [ADD] * 3, {}, StopReason.ENV_TRUNCATED),
        (TimeLimit(Calculator(), 2), [ADD, ANSWER], {}, StopReason.FINAL_ANSWER),
        (Calculator(), [ADD] * 3, {"max_turns": 3}, StopReason.MAX_TURNS),
        (Calculator(), [ADD, ADD, ANSWER], {"max_turns": 3}, StopReason.FINAL_ANSWER),
        (Calculator(), [ADD] * 3, {"max_tool_calls": 3}, StopReason.MAX_TOOL_CALLS),
        (Calculator(), [ADD, ADD, ANSWER], {"max_tool_calls": 3}, StopReason.FINAL_ANSWER),
        (Ender(), [ADD] * 3, {"max_tool_calls": 2}, StopReason.MAX_TOOL_CALLS),
    ],
)
async def test_endings(environment: Any, script: Any, limits: dict[str, Any], stop: StopReason) -> None:
    episode = await play_one(environment, script, **limits)
    assert episode.failure is None, episode.failure
    assert episode.stop is stop
    assert episode.reward == episode.environment_reward == episode.reward_parts["environment"]
    assert episode.stop.is_termination + episode.stop.is_truncation + episode.stop.is_failure == 1


def test_every_stop_reason_is_of_one_kind() -> None:
    kinds = {reason: (reason.is_termination, reason.is_truncation, reason.is_failure) for reason in StopReason}
    assert all(sum(kind) == 1 for kind in kinds.values())
    terminations = {reason.value for reason in StopReason if reason.is_termination}
    assert terminations == {"final_answer", "env_terminated", "model_stopped", "malformed"}
    assert [reason for reason in StopReason if reason.is_failure] == [StopReason.FAILED]


async def test_the_record_of_a_whole_episode() -> None:
    episode = await play_one(Calculator(), [tool_calls(("add", {"a": 1, "b": 2}), ("ad", {})), ANSWER])
    assert [message["role"] for message in episode.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "tool",
    ]
    assert [record.outcome for record in episode.tool_calls] == ["ok", "unknown", "ok"]
    assert [schema["function"]["name"] for schema in episode.tools] == ["add", "subtract", "multiply", "final_answer"]
    assert [turn.reward for turn in episode.turns] == [0.0, 1.0]
    assert episode.metrics == {"success": 1.0}
    assert (episode.attempts, episode.traces, episode.close_failure) == (1, [], None)
    assert 0 < sum(turn.environment_seconds for turn in episode.turns) < episode.seconds


async def test_a_timeout_truncates_the_episode() -> None:
    async def hang(messages: list[Message]) -> Message:
        if len(messages) > 1:
            await asyncio.Event().wait()
        return ADD

    log = Log()
    episode = await play_one(Calculator(), hang, episode_timeout=0.2)
    assert (episode.stop, episode.reward, len(episode.turns)) == (StopReason.TIMEOUT, 0.0, 1)

    class Endless(Probe):
        async def astep(self, action: Message) -> StepResult:
            await asyncio.Event().wait()
            raise AssertionError

    episode = await play_one(Endless(log), ["x"], episode_timeout=0.2)
    assert (episode.stop, len(episode.turns)) == (StopReason.TIMEOUT, 1)
    assert log.closed[-1] == 1


async def test_a_timeout_after_the_end_does_not_change_how_the_episode_ended() -> None:
    """The policy may still be told of the last result, and take its time."""

    class Slow(ScriptedPolicy):
        def begin(self, spec: Any, messages: Any, tools: Any) -> Any:
            conversation: Any = super().begin(spec, messages, tools)

            async def observe(*observation: Any, **options: Any) -> None:
                await asyncio.Event().wait()

            conversation.observe = observe
            return conversation

    async def play(script: list[Any]) -> Episode:
        engine = RolloutEngine(Calculator(), Slow(script), limits=EpisodeLimits(episode_timeout=0.2))
        [episode] = await engine.run(specs(1))
        return episode

    episode = await play([ANSWER])
    assert (episode.stop, episode.reward) == (StopReason.FINAL_ANSWER, 1.0)
    episode = await play([tool_call("final_answer", answer="no number")])  # it was refused, so the episode goes on
    assert (episode.stop, episode.failure) == (StopReason.TIMEOUT, None)


async def test_a_timeout_before_the_first_answer_is_a_failure() -> None:
    class NeverReset(Probe):
        async def areset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Message], dict]:
            await asyncio.Event().wait()
            raise AssertionError

    log = Log()
    episode = await play_one(NeverReset(log), ["x"], episode_timeout=0.05)
    assert episode.failure is not None
    assert (episode.stop, episode.failure.stage, episode.failure.type) == (StopReason.FAILED, "reset", "TimeoutError")
    assert episode.failure.message == "episode_timeout=0.05 s was over before the first answer"
    assert episode.reward is None
    assert log.closed[-1] == 1


# --- the limit of tool calls ------------------------------------------------------------------------------------


async def test_refused_calls_get_a_result_in_their_place() -> None:
    turn = tool_calls(
        ("add", {"a": 1, "b": 1}), ("add", {"a": 2, "b": 2}), ("nothing", {}), ("final_answer", {"answer": "x"})
    )
    episode = await play_one(Calculator(), [turn], max_tool_calls=1)
    assert episode.stop is StopReason.MAX_TOOL_CALLS  # the final call failed, so the limit counts
    refusal = "Error: not run, the limit of 1 tool calls is reached."
    assert tool_contents(episode)[:3] == ["2", refusal, refusal]
    assert "valid integer" in tool_contents(episode)[3]
    assert [message.get("tool_call_id") for message in episode.turns[0].observation] == [
        "call_0",
        "call_1",
        "call_2",
        "call_3",
    ]
    assert [record.call_id for record in episode.tool_calls] == ["call_0", "call_1", "call_2", "call_3"]
    assert [record.outcome for record in episode.tool_calls] == ["ok", "not_run", "unknown", "bad_arguments"]
    assert episode.turns[0].message == turn  # the model's message is unchanged


async def test_a_final_answer_takes_precedence_over_every_limit() -> None:
    turn = tool_calls(
        ("add", {"a": 1, "b": 1}), ("add", {"a": 2, "b": 2}), ("final_answer", {"answer": 3}), ("add", {"a": 0, "b": 0})
    )
    episode = await play_one(Calculator(), [turn], max_tool_calls=1, max_turns=1)
    assert (episode.stop, episode.reward) == (StopReason.FINAL_ANSWER, 1.0)
    assert [record.outcome for record in episode.tool_calls] == ["ok", "not_run", "ok", "not_run"]
    assert tool_contents(episode)[2] == "right"


async def test_the_limit_counts_over_turns() -> None:
    two = tool_calls(("add", {"a": 1, "b": 1}), ("add", {"a": 2, "b": 2}))
    episode = await play_one(Calculator(), [two, two], max_tool_calls=3)
    assert episode.stop is StopReason.MAX_TOOL_CALLS
    assert tool_contents(episode) == ["2", "4", "2", "Error: not run, the limit of 3 tool calls is reached."]


async def test_refusals_stand_before_other_messages() -> None:
    class Chatty(Environment):
        async def astep(self, action: Message) -> StepResult:
            results: list[Message] = [{"role": "tool", "content": "ran"} for _ in action.get("tool_calls") or []]
            return StepResult([*results, {"role": "user", "content": "go on"}], 0.0, False, False, {})

    episode = await play_one(Chatty(), [tool_calls(("a", {}), ("b", {}))], max_tool_calls=1)
    observation = episode.turns[0].observation
    assert [message["role"] for message in observation] == ["tool", "tool", "user"]
    assert observation[0].get("content") == "ran"


async def test_turns_keep_their_times_and_the_html_of_the_environment() -> None:
    class Drawn(Calculator):
        def render_html(self) -> str:
            return f"<b>{self.expected}</b>"

    episode = await play_one(Drawn(), [ADD, ANSWER])
    assert [turn.html for turn in episode.turns] == ["<b>3</b>"] * 2
    first, second = episode.turns
    assert 0 < first.began < second.began < episode.seconds
    assert second.began >= first.began + first.generation_seconds + first.environment_seconds
    assert episode.began > 1.7e9  # seconds since 1970
