"""TextGameEnv: the text games of GEM and TextArena."""

from __future__ import annotations

import contextlib
import inspect
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..core import BrokenEnvironmentError, Message, text_of
from .seeded import SeededEnv

Opponent = Callable[[str], str]

_one_game_at_a_time = threading.Lock()  # the games draw from generators that the whole process shares


class TextGameEnv(SeededEnv):
    """A text game of GEM or TextArena: the model's message is its move, and the game's answer is the observation.

        environment = TextGameEnv(lambda: textarena.make("GuessTheNumber-v0-raw"))
        environment = TextGameEnv(lambda: gem.make("game:GuessTheNumber-v0-easy"))

    GEM's rewards count for the turn that earned them, and its endings are terminations and truncations. TextArena gives
    one reward when the game is over, which is a termination. A row may have a `seed`, which goes before the episode's.

    These games draw from the generators of `random` and NumPy that the whole process shares. Here each game has a state
    of its own, so that games at the same time do not change each other. Therefore only one game moves at a time. A game
    that hangs holds the others up until its episode is over.
    """

    _game: _Gem | _TextArena | None = None

    def __init__(
        self, factory: Callable[[], Any], *, players: int = 1, opponent: Opponent | None = None, **options: Any
    ) -> None:
        """Make the environment.

        Args:
            factory: Makes a game: an environment of GEM or TextArena.
            players: For TextArena: the number of players. The model is player 0.
            opponent: For TextArena: gives the moves of the other players, from the game's text to a move. It is called
                in many threads at the same time, and other games move meanwhile.
            options: The options of `ToolEnv`.

        Raises:
            TypeError: the opponent is `async`.
            ValueError: there are several players and no opponent.
        """
        if inspect.iscoroutinefunction(opponent):
            raise TypeError("the opponent is `async def`; make it a plain function, which runs in a thread")
        if players > 1 and opponent is None:
            raise ValueError(
                f"a game of {players} players needs an opponent: a function from the game's text to a move"
            )
        self._factory = factory
        self._players = players
        self._opponent = opponent
        super().__init__(**options)

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        seed = self.seed_of(task)
        if seed is None:
            seed = int(self.np_random.integers(2**32))
        randomness = _Randomness(seed % 2**32)  # the seeds that NumPy takes
        self._opened.callback(randomness.end)
        with randomness.in_use():
            made = self._factory()
        if hasattr(made, "get_observation"):  # only games of TextArena have players
            self._game = _TextArena(made, randomness, self._players, self._opponent)
        else:
            self._game = _Gem(made, randomness)
        return [{"role": "user", "content": self._game.reset()}]

    def reply(self, message: Message) -> list[Message]:
        assert self._game is not None
        text, reward, self.terminated, self.truncated = self._game.move(text_of(message))
        self.reward += reward
        return [{"role": "user", "content": text}]


Move = tuple[str, float, bool, bool]
"""The new text, the reward, terminated, truncated."""


class _Randomness:
    """The random numbers of one game, drawn from the generators that the whole process shares."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._states: tuple[Any, Any] | None = None  # of the generators after the game's last move
        self._others: tuple[Any, Any] | None = None  # of the process, while the game moves
        self._ended = False
        self._giving_back = threading.Lock()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Give the generators this game's state; afterwards they have the process's own again."""
        _one_game_at_a_time.acquire()
        self._others = random.getstate(), np.random.get_state()
        try:
            if self._ended:
                raise RuntimeError("the game was closed while it waited for its turn")
            if self._states is None:
                random.seed(self.seed)
                np.random.seed(self.seed)
            else:
                random.setstate(self._states[0])
                np.random.set_state(self._states[1])
            yield
        finally:
            self._give_back()

    def end(self) -> None:
        """Let the other games move, even if this one hangs in a thread that was abandoned."""
        self._ended = True
        self._give_back()

    def _give_back(self) -> None:
        with self._giving_back:
            if self._others is None:  # `end` was called during a move
                return
            self._states = random.getstate(), np.random.get_state()
            random.setstate(self._others[0])
            np.random.set_state(self._others[1])
            self._others = None
            _one_game_at_a_time.release()


class _Game:
    """A game with random numbers of its own."""

    def __init__(self, game: Any, randomness: _Randomness) -> None:
        self._game = game
        self._randomness = randomness

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        with self._randomness.in_use():
            return _unless_broken("game", getattr(self._game, method), *args, **kwargs)


class _Gem(_Game):
    """A game of GEM: Gymnasium's methods on text; `info["suffix"]` is the end of an observation."""

    def reset(self) -> str:
        observation, info = self._call("reset", seed=self._randomness.seed)
        return _with_suffix(observation, info)

    def move(self, text: str) -> Move:
        observation, reward, terminated, truncated, info = self._call("step", text)
        over = terminated or truncated
        told = observation if over else _with_suffix(observation, info)
        return told, float(reward), bool(terminated), bool(truncated and not terminated)


class _TextArena(_Game):
    """A game of TextArena: players take turns, and a finished game tells the rewards."""

    def __init__(self, game: Any, randomness: _Randomness, players: int, opponent: Opponent | None) -> None:
        super().__init__(game, randomness)
        self._players = players
        self._opponent = opponent
        self._before = ""  # the text that the model has read, if the game's wrappers repeat it

    def reset(self) -> str:
        self._call("reset", num_players=self._players, seed=self._randomness.seed)
        if not self._others_move():
            raise BrokenEnvironmentError("the game was over before the model's first move")
        return self._news()

    def move(self, text: str) -> Move:
        over, _ = self._call("step", text)
        if not over and self._others_move():
            return self._news(), 0.0, False, False
        rewards, info = self._call("close")
        if not rewards or rewards.get(0) is None:
            raise BrokenEnvironmentError(f"the game is over and gave the model, player 0, no reward: {rewards!r}")
        return str(info.get(0, {}).get("reason", "The game is over.")), float(rewards[0]), True, False

    def _others_move(self) -> bool:
        """Let the other players move; False if this ends the game."""
        while True:
            player, self._observation = self._call("get_observation")
            if player == 0:
                return True
            assert self._opponent is not None
            # Outside `_call`: an opponent may take long, and the other games must not wait for it.
            move = _unless_broken("opponent", self._opponent, _joined(self._observation, player))
            over, _ = self._call("step", move)
            if over:
                return False

    def _news(self) -> str:
        text = _joined(self._observation, 0)
        before, self._before = self._before, text
        return text.removeprefix(before) if isinstance(self._observation, str) else text


def _unless_broken(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise BrokenEnvironmentError(f"the {name} raised {type(error).__name__}: {error}") from error


def _joined(observation: Any, player: int) -> str:
    """Return the text of an observation: a str, or messages `(sender, text, type)` without the player's own."""
    if isinstance(observation, str):
        return observation
    return "\n".join(text for sender, text, _ in observation if sender != player)


def _with_suffix(observation: str, info: Mapping[str, Any]) -> str:
    suffix = info.get("suffix", "")
    return observation if observation.endswith(suffix) else f"{observation}\n{suffix}"
