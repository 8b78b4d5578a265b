"""`GymnasiumEnv` plays Gymnasium's own environments step for step."""

from __future__ import annotations

from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Text
from gymnasium.wrappers import TimeLimit

from gymnast.envs import Episode, Image, RolloutEngine, ScriptedPolicy, StopReason, tool_call, tool_calls
from gymnast.envs.adapters import GymnasiumEnv

from .episodes import tool_contents

LAKE = ["left", "down", "right", "up"]


def act(action: str) -> Any:
    return tool_call("act", action=action)


def play(environment: GymnasiumEnv, *script: Any, row: dict[str, Any] | None = None) -> Episode:
    [episode] = RolloutEngine(environment, ScriptedPolicy(script)).play([row or {}], seed=7)
    return episode


class Echo(gymnasium.Env[str, str]):
    """An environment of text; the action "crash" crashes it."""

    action_space = Text(5, charset="abcrsh")
    observation_space = Text(80)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return f"{int(self.np_random.integers(1000))} {options}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "crash":
            raise ZeroDivisionError("in the game")
        return action, 0.25, False, False, {}


def test_a_frozen_lake_is_played_by_pictures_and_names() -> None:
    environment = GymnasiumEnv("FrozenLake-v1", actions=LAKE, instructions="Reach G.")
    episode = play(environment, act("right"), act("jump"), act("left"), row={"seed": 3})
    lake = gymnasium.make("FrozenLake-v1", render_mode="ansi")
    lake.reset(seed=3)
    assert episode.prompt == [{"role": "user", "content": "Reach G.\n\n[S]FFF\nFHFH\nFFFH\nHFFG"}]
    first, wrong, second = tool_contents(episode)
    for action, content in ((2, first), (0, second)):
        square, *_ = lake.step(action)
        rows = [list(line) for line in ("SFFF", "FHFH", "FFFH", "HFFG")]
        rows[square // 4][square % 4] = f"[{rows[square // 4][square % 4]}]"
        assert content.endswith("\n".join("".join(row) for row in rows))
    assert "'left', 'down', 'right' or 'up', got 'jump'" in wrong
    assert episode.tools[0]["function"]["parameters"]["properties"]["action"]["enum"] == LAKE


def test_rewards_and_endings_are_the_environments_own() -> None:
    hand = gymnasium.make("Blackjack-v1")
    for seed in range(6):
        observation, _ = hand.reset(seed=seed)
        steps = [str(observation)]
        rewards: list[float] = []
        over = False
        while not over:
            observation, reward, over, _, _ = hand.step(1)
            steps.append(f"({', '.join(map(str, observation))})")
            rewards.append(float(reward))
        episode = play(GymnasiumEnv("Blackjack-v1", actions=["stick", "hit"]), *[act("hit")] * 9, row={"seed": seed})
        assert [turn.reward for turn in episode.turns] == rewards
        assert tool_contents(episode) == [*steps[1:-1], f"{steps[-1]}\nThe game is over."]
        assert (episode.stop, episode.reward) == (StopReason.ENV_TERMINATED, -1.0)


def test_a_time_limit_truncates_and_calls_after_the_end_are_refused() -> None:
    environment = GymnasiumEnv(lambda: TimeLimit(Echo(), 2))
    calls = tool_calls(*[("act", {"action": letter}) for letter in "abc"])
    episode = play(environment, calls)
    assert tool_contents(episode) == ["a", "b\nThe game is over.", "Error: ValueError: the game is over"]
    assert (episode.stop, episode.reward) == (StopReason.ENV_TRUNCATED, 0.5)
    lasting = GymnasiumEnv(lambda: TimeLimit(Echo(), 2))
    lasting.reset(seed=0)
    assert lasting.step(act("a"))[2:4] == (False, False)
    assert lasting.step(act("a"))[2:4] == (False, True)
    with pytest.raises(RuntimeError, match="no episode"):
        lasting.step(act("a"))
    lasting.close()


def test_seeds_and_options_reach_the_game() -> None:
    def prompt(row: dict[str, Any] | None = None, seed: int = 7) -> Any:
        [episode] = RolloutEngine(GymnasiumEnv(Echo), ScriptedPolicy([act("a")] * 1)).play([row or {}], seed=seed)
        return episode.prompt[0].get("content")

    game = Echo()
    assert prompt({"seed": 5, "options": {"deep": True}}).endswith(game.reset(seed=5, options={"deep": True})[0])
    assert prompt(seed=1) == prompt(seed=1) != prompt(seed=2)


def test_a_crash_of_the_game_fails_the_episode_and_a_wrong_text_does_not() -> None:
    episode = play(GymnasiumEnv(Echo), act("hello"), act("crash"))
    assert tool_contents(episode) == ["Error: ValueError: an action has 1 to 5 characters of 'abchrs'"]
    assert episode.failure is not None
    assert str(episode.failure.message) == "the game raised ZeroDivisionError: in the game"
    assert episode.reward is None


def test_the_text_of_an_observation_can_be_changed() -> None:
    def describe(observation: Any, game: gymnasium.Env[Any, Any]) -> str:
        row, column, passenger, goal = game.unwrapped.decode(observation)  # type: ignore[attr-defined]
        return f"taxi at {row}, {column}; passenger at {passenger}; goal {goal}"

    environment = GymnasiumEnv("Taxi-v4", actions=list("snewpd"), describe=describe)
    described = play(environment, act("p"), row={"seed": 1})
    assert str(described.prompt[0].get("content")).endswith("taxi at 2, 2; passenger at 3; goal 0")
    pictured = play(GymnasiumEnv("Taxi-v4"), act("4"), row={"seed": 1})
    assert "|(R): | : :G|\n| : | : : |\n| : :[ ]: : |" in str(pictured.prompt[0].get("content"))


def test_arrays_are_shown_as_numbers() -> None:
    class Measured(Echo):
        action_space = Discrete(2, start=5)
        observation_space = Box(-1, 1, (2,))

        def reset(self, **_: Any) -> Any:
            return {"at": np.array([0.123456, 1], dtype=np.float32), "lives": np.int64(3)}, {}

    environment = GymnasiumEnv(Measured)
    messages, _ = environment.reset(seed=0)
    assert str(messages[0].get("content")).endswith("{'at': [0.1235, 1.0], 'lives': 3}")
    assert environment.tool_schemas()[0]["function"]["parameters"]["properties"]["action"]["enum"] == ["5", "6"]
    environment.close()


def test_wrong_spaces_and_names_are_refused() -> None:
    with pytest.raises(TypeError, match=r"takes environments with Discrete or Text actions; the action space is Box"):
        GymnasiumEnv("Pendulum-v1")
    with pytest.raises(ValueError, match=r"actions must be 4 different names, one for each action of Discrete\(4\)"):
        GymnasiumEnv("FrozenLake-v1", actions=["left", "right"])
    with pytest.raises(ValueError, match="actions names those of a Discrete space"):
        GymnasiumEnv(Echo, actions=["a"])
    with pytest.raises(gymnasium.error.Error):
        GymnasiumEnv("NoSuchLake-v1")


def test_every_environment_that_was_made_is_closed() -> None:
    closed: list[int] = []

    class Closing(Echo):
        def close(self) -> None:
            closed.append(1)

    play(GymnasiumEnv(Closing), act("a"))
    assert len(closed) == 2  # the copy that the engine makes of the prototype at once, and the episode's


def test_frames_stand_behind_the_text_of_each_observation() -> None:
    pytest.importorskip("pygame")
    lake = gymnasium.make("FrozenLake-v1", render_mode="rgb_array")
    frames = list[Image]()
    for move in (lambda: lake.reset(seed=3), lambda: lake.step(2)):
        move()
        frames.append(Image.of(cast(Any, lake.render())))
    assert frames[0] != frames[1]
    lake.close()
    both = play(GymnasiumEnv("FrozenLake-v1", actions=LAKE, frames=True), act("right"), row={"seed": 3})
    parts: Any = both.prompt[0].get("content")
    assert parts[1:] == [{"type": "text", "text": "0"}, {"type": "image", "image": frames[0]}]
    [_, frame] = both.completion[1].get("content") or ""
    assert frame == {"type": "image", "image": frames[1]}
    alone = play(GymnasiumEnv("FrozenLake-v1", frames=True, describe=lambda *_: ""), act("2"), row={"seed": 3})
    assert alone.completion[1].get("content") == [frame]
    refused = "needs render_mode='rgb_array'; Echo has render_mode=None and can have none: make it with render_mode="
    with pytest.raises(ValueError, match=refused):
        GymnasiumEnv(Echo, frames=True)
