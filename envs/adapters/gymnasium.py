"""GymnasiumEnv: any Gymnasium environment with discrete or text actions, played by one tool."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete, Text

from ..core import BrokenEnvironmentError, Message
from ..images import Image
from ..runtime.threads import run_in_thread
from ..tools.mark import tool
from ..tools.results import render
from .seeded import SeededEnv

Describe = Callable[[Any, gymnasium.Env[Any, Any]], str]


class GymnasiumEnv(SeededEnv):
    """A Gymnasium environment as an environment for language models: the tool `act` takes one step in it.

        environment = GymnasiumEnv("FrozenLake-v1", actions=["left", "down", "right", "up"])
        rows = [{"seed": seed} for seed in range(100)]

    The rewards, `terminated` and `truncated` are the environment's own, and so are the limits of steps that
    `gymnasium.make` adds. A row may have `seed`, which goes before the seed of the episode, and `options` for `reset`.
    A step that raises an exception fails the episode.
    """

    game: gymnasium.Env[Any, Any]

    def __init__(
        self,
        environment: str | Callable[[], gymnasium.Env[Any, Any]],
        *,
        actions: Sequence[str] | None = None,
        describe: Describe | None = None,
        frames: bool = False,
        instructions: str | None = None,
        **options: Any,
    ) -> None:
        """Make the environment.

        Args:
            environment: A Gymnasium id, or a function that returns an environment: a fresh one for each episode.
            actions: A name for each action of a `Discrete` space, in order; by default the numbers.
            describe: The text of an observation, from the observation and the environment. By default the picture of
                `render_mode="ansi"` if the id's environment has one, with `[x]` for a letter with a coloured
                background and `(x)` for a coloured one; otherwise the observation as text.
            frames: Whether the picture of `render_mode="rgb_array"` follows the text of each observation. With
                `describe=lambda *_: ""` it is alone.
            instructions: The text before the first observation.
            options: The options of `ToolEnv`.

        Raises:
            gymnasium.error.Error: the id is not registered.
            TypeError: it is a single environment, or its action space is neither `Discrete` nor `Text`.
            ValueError: there is not one name for each action, or `frames` are asked of an environment without them.
        """
        if isinstance(environment, gymnasium.Env):
            raise TypeError(
                f"GymnasiumEnv takes an id, or a function that makes a fresh environment for each episode, got one "
                f"environment: {environment}; write its id, or lambda: gymnasium.make(...)"
            )
        mode = "rgb_array" if frames else "ansi" if describe is None else None
        self.game = _made(environment, mode) if isinstance(environment, str) else environment()
        name = environment if isinstance(environment, str) else type(self.game.unwrapped).__name__
        if frames and self.game.render_mode != "rgb_array":
            modes = self.game.metadata.get("render_modes", ())
            self.game.close()
            raise ValueError(
                f"frames=True needs render_mode='rgb_array'; {name} has render_mode={self.game.render_mode!r} and can "
                f"have {', '.join(modes) or 'none'}: make it with render_mode='rgb_array', or leave frames out"
            )
        self._frames = frames
        self._describe = describe or default_text
        self._instructions = instructions or f"Play {name}. Call the tool `act` until the game is over."
        super().__init__([self._action_tool(actions)], **options)

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        observation, _ = self.game.reset(seed=self.seed_of(task), options=task.get("options"))
        content = self._content([self._instructions, *self._seen(observation)], "\n\n")
        return [{"role": "user", "content": render(content)}]

    async def aclose(self) -> None:
        try:
            await super().aclose()
        finally:
            await run_in_thread(self.game.close)

    def _seen(self, observation: Any) -> list[Any]:
        """Return the text of an observation, and the picture of the current state if frames are shown."""
        return [self._describe(observation, self.game), *([Image.of(self.game.render())] if self._frames else [])]

    def _content(self, parts: list[Any], gap: str) -> str | list[Any]:
        return [*filter(None, parts)] if self._frames else gap.join(parts)

    def _act(self, action: Any) -> str | list[Any]:
        if self.terminated or self.truncated:
            raise ValueError("the game is over")
        try:
            observation, reward, terminated, truncated, _ = self.game.step(action)
            shown = self._seen(observation)
        except Exception as error:
            raise BrokenEnvironmentError(f"the game raised {type(error).__name__}: {error}") from error
        self.reward += float(reward)
        self.terminated, self.truncated = terminated, truncated and not terminated
        ended = ["The game is over."] if terminated or truncated else []
        return self._content([*shown, *ended], "\n")

    def _action_tool(self, names: Sequence[str] | None) -> Callable[..., Any]:
        """Return the tool, whose schema lists the actions. Only the engine's `step_timeout` limits its calls."""
        space = self.game.action_space
        if isinstance(space, Discrete):
            numbers = _numbers(space, names)
            return _tool(Literal[tuple(numbers)], "The action.", lambda action: self._act(numbers[action]))
        if not isinstance(space, Text):
            raise TypeError(
                f"GymnasiumEnv takes environments with Discrete or Text actions; the action space is {space}"
            )
        if names is not None:
            raise ValueError(f"actions names those of a Discrete space; the action space is {space}")

        def act(action: str) -> Any:
            if not space.contains(action):
                letters = "".join(sorted(space.characters))
                raise ValueError(f"an action has {space.min_length} to {space.max_length} characters of {letters!r}")
            return self._act(action)

        return _tool(str, "The action, in words.", act)


def _numbers(space: Discrete, names: Sequence[str] | None) -> dict[str, np.int64]:
    """Return the numbers of the actions by their names."""
    count, start = int(space.n), int(space.start)
    known = [str(start + index) for index in range(count)] if names is None else list(names)
    if len(known) != count or len(set(known)) != count:
        raise ValueError(f"actions must be {count} different names, one for each action of {space}, got {known}")
    return {name: np.int64(start + index) for index, name in enumerate(known)}


def _tool(kind: Any, description: str, act: Callable[[Any], Any]) -> Callable[..., Any]:
    def act_once(action: Any) -> Any:
        return act(action)

    act_once.__annotations__["action"] = kind
    act_once.__doc__ = f"Take one step.\n\nArgs:\n    action: {description}"
    return tool(name="act", timeout=math.inf)(act_once)


def _made(name: str, mode: str | None) -> gymnasium.Env[Any, Any]:
    if ":" not in name and name not in gymnasium.registry and (near := get_close_matches(name, gymnasium.registry)):
        raise gymnasium.error.NameNotFound(f"there is no Gymnasium id {name!r}; did you mean {' or '.join(near)}?")
    entry = gymnasium.spec(name)
    environment = gymnasium.make(name, disable_env_checker=True)
    if mode not in environment.metadata.get("render_modes", ()) or "render_mode" in entry.kwargs:
        return environment
    environment.close()
    return gymnasium.make(name, disable_env_checker=True, render_mode=mode)


def default_text(observation: Any, environment: gymnasium.Env[Any, Any]) -> str:
    """Return the picture of an environment in the render mode "ansi", or else the observation itself, as text."""
    if environment.render_mode == "ansi":
        return without_colours(str(environment.render())).strip("\n")
    return observation if isinstance(observation, str) else str(_plain(observation))


def without_colours(picture: str) -> str:
    """Return text without the colours of a terminal: `[x]` had a coloured background, `(x)` was coloured itself."""

    def marked(found: re.Match[str]) -> str:
        codes, letters = found[1].split(";"), found[2]
        return f"[{letters}]" if any(re.fullmatch("4[0-7]|10[0-7]", code) for code in codes) else f"({letters})"

    marks = re.sub(r"\x1b\[([0-9;]+)m(.*?)\x1b\[0?m", marked, picture, flags=re.DOTALL)
    return re.sub(r"\x1b\[[0-9;]*m", "", marks)


def _plain(value: Any) -> Any:
    """Return arrays and numbers of NumPy as Python's, with four decimals."""
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    return round(value, 4) if isinstance(value, float) else value
