"""Makes a fresh environment for each episode from an `environment=` argument, and registers Gymnasium ids."""

from __future__ import annotations

import difflib
import importlib
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Union, cast

import gymnasium
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.utils import RecordConstructorArgs

from .core import Environment
from .episode import Episode, EpisodeSpec
from .installed import installed_environments, load_installed

EnvironmentLike = Union[
    gymnasium.Env[Any, Any],
    type[gymnasium.Env[Any, Any]],
    Callable[[], gymnasium.Env[Any, Any]],
    str,
    Mapping[str, Any],
    "EnvironmentSource",
]
"""What `environment=` takes: a prototype, a class, a factory, a name, or a dict of these; or a source."""

FROM_TRL = (
    "derive a class that has reset and public methods, as an environment of TRL has, from ToolEnv, rename reset to "
    "reset_task(self, task), and mark its tools with @tool: docs/from_trl.md"
)

Factory = Callable[[], gymnasium.Env[Any, Any]]

ENVIRONMENT_COLUMN = "environment"  # the row's column that chooses among a dict of environments


def register_environments() -> None:
    """Register the environments that come with gymnast, without importing them. `gymnast.envs` calls this on import."""
    if "gymnast/Calculator-v0" not in gymnasium.registry:
        gymnasium.register(id="gymnast/Calculator-v0", entry_point="gymnast.envs.examples.calculator:Calculator")


class EnvironmentSource:
    """Makes a fresh environment for each episode."""

    def __init__(self, factories: Mapping[str | None, Factory]) -> None:
        self._factories = dict(factories)
        # Keyed by id(), since an environment may be unhashable, e.g. a dataclass.
        self._made: weakref.WeakValueDictionary[int, gymnasium.Env[Any, Any]] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()  # environments are made in worker threads

    @classmethod
    def of(cls, environment: EnvironmentLike) -> EnvironmentSource:
        """Make a source from an `environment=` argument.

        - A prototype is copied: each copy is made from its recorded constructor arguments, which all copies share.
          Attributes that were set later are not copied.
        - A class or a factory is called without arguments.
        - A name is one that an installed package offers, as `gymnast envs` lists them, or else a Gymnasium id, which
          is passed to `gymnasium.make`.
        - In a dict of these, the row's `environment` column chooses.
        - A source, such as `RayEnvironments`, is returned as it is.

        Raises:
            TypeError: the argument is of another kind.
            ValueError: the dict is empty; or two packages offer the name, or its package cannot be imported.
            gymnasium.error.Error: there is no such name.
        """
        if isinstance(environment, EnvironmentSource):
            return environment
        if isinstance(environment, Mapping):
            if not environment:
                raise ValueError("environment is an empty dict: give it at least one environment")
            return cls({str(name): _factory(entry) for name, entry in environment.items()})
        return cls({None: _factory(environment)})

    @property
    def names(self) -> list[str | None]:
        """The names that rows choose from; `[None]` if there is only one environment."""
        return list(self._factories)

    def create(self, spec: EpisodeSpec) -> gymnasium.Env[Any, Any]:
        """Make a fresh environment for this episode.

        Raises:
            TypeError: a factory returned something other than an environment, or the same environment again.
            ValueError: the row does not choose one of several environments.
        """
        environment = self._factories[self.choose(spec.task.row)]()
        if not isinstance(environment, gymnasium.Env):
            raise TypeError(f"the environment factory returned {type(environment).__name__}, not a gymnasium.Env")
        _refuse_numbers(environment)
        with self._lock:
            if id(environment) in self._made:
                raise TypeError(
                    f"the environment factory returned the same {type(environment).__name__} again; every episode "
                    f"needs a fresh one"
                )
            self._made[id(environment)] = environment
        return environment

    async def play(self, play_episode: Callable[..., Awaitable[Episode]], spec: EpisodeSpec, *how: Any) -> Episode:
        """Play an episode with the engine's `play_episode(spec, create, *how)`.

        A source whose environments are on other machines may play the whole episode there.
        """
        return await play_episode(spec, self.create, *how)

    async def prepare(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Let prototypes get ready for episodes of these rows: `Environment.aprepare`."""
        rows = list(rows)
        for name, factory in self._factories.items():
            prototype = factory.prototype.unwrapped if isinstance(factory, _Copies) else None
            if isinstance(prototype, Environment):
                await prototype.aprepare([row for row in rows if name in (None, row.get(ENVIRONMENT_COLUMN))])

    def choose(self, row: Mapping[str, Any]) -> str | None:
        """Return the name of the environment that a row is played in; None if there is only one, which has no name."""
        if None in self._factories:
            return None
        name = row.get(ENVIRONMENT_COLUMN)
        if not isinstance(name, str) or name not in self._factories:
            raise ValueError(
                f"the row's {ENVIRONMENT_COLUMN!r} column must name one of {sorted(map(str, self._factories))}, "
                f"got {name!r}"
            )
        return name


@dataclass(frozen=True)
class _Copies:
    """The factory of a prototype."""

    prototype: gymnasium.Env[Any, Any]

    def __call__(self) -> gymnasium.Env[Any, Any]:
        return _copy_of(self.prototype)


def _factory(environment: Any) -> Factory:
    if isinstance(environment, gymnasium.Env):
        _refuse_numbers(environment)
        copy = _copy_of(environment)  # fail now, not in the first episode, if the prototype cannot be copied
        copy.close()
        _refuse_lost_state(environment.unwrapped, copy.unwrapped)
        return _Copies(environment)
    if isinstance(environment, type):
        if issubclass(environment, gymnasium.Env):
            return environment
    elif isinstance(environment, str):
        offered = load_installed(environment)
        return _registered(environment) if offered is None else _factory(offered)
    elif callable(environment):
        return cast(Factory, environment)
    text = (
        f"environment must be an Environment, an Environment class, a function that returns one, the name of an "
        f"installed one, a Gymnasium id, or a dict of these, got {environment!r}"
    )
    is_of_trl = callable(getattr(environment, "reset", None))
    raise TypeError(text + ("; " + FROM_TRL if is_of_trl else ""))


def _registered(environment: str) -> Factory:
    """Return the factory of an id, or of "module:id", as `gymnasium.make` takes it."""
    module, _, name = environment.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        gymnasium.spec(name)  # refuses an unknown id now, and names similar ones
    except (ModuleNotFoundError, gymnasium.error.NameNotFound) as error:
        if "/" in name:  # Gymnasium names similar ids of the same namespace
            raise
        known = [*(entry.name for entry in installed_environments()), *gymnasium.registry]
        near = [repr(close) for close in difflib.get_close_matches(environment, known)]
        meant = f"near names are {', '.join(near)}" if near else "`gymnast envs` lists the installed ones"
        itself = f"; or pass the class itself: environment={name}" if name[:1].isupper() and name.isidentifier() else ""
        raise gymnasium.error.NameNotFound(
            f"no installed package offers an environment {environment!r}, and it is no Gymnasium id; {meant}{itself}"
        ) from error
    return lambda: gymnasium.make(name, disable_env_checker=True)


def _copy_of(environment: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    if isinstance(environment, Environment):
        return environment.clone()
    if isinstance(environment, gymnasium.Wrapper) and isinstance(environment, RecordConstructorArgs):
        arguments = {name: value for name, value in environment._saved_kwargs.items() if name != "env"}
        return type(environment)(_copy_of(environment.env), **arguments)
    raise TypeError(
        f"{type(environment).__name__} cannot be copied, because its constructor arguments were not recorded; pass "
        f"a function that makes one instead: environment=lambda: {type(environment).__name__}(...)"
    )


def _refuse_numbers(environment: gymnasium.Env[Any, Any]) -> None:
    """Refuse a game of Gymnasium, whose actions are numbers; environments here take messages."""
    space = vars(environment.unwrapped).get("action_space")
    if isinstance(space, Discrete | Box | MultiDiscrete | MultiBinary):
        raise TypeError(
            f"{type(environment.unwrapped).__name__} takes actions of {space}, and a model answers with messages: "
            f"give environment=GymnasiumEnv(id), of gymnast.envs.adapters.gymnasium, or derive from Environment"
        )


def _refuse_lost_state(prototype: gymnasium.Env[Any, Any], copy: gymnasium.Env[Any, Any]) -> None:
    """Refuse attributes set from outside: copies are made from the constructor's arguments and lack these attributes.

    Only before the first reset: attributes that `reset` or `step` set belong to an episode.
    """
    if not isinstance(prototype, Environment) or prototype._was_reset:
        return
    lost: list[str] = []
    for name, value in vars(prototype).items():
        if name.startswith("_") or hasattr(gymnasium.Env, name):
            continue
        is_option = hasattr(type(prototype), name) and isinstance(value, str | int | float | None)
        if name not in vars(copy) or (is_option and value != vars(copy)[name]):
            lost.append(name)
    if lost:
        raise ValueError(
            f"{type(prototype).__name__}: {', '.join(lost)} was set after the environment was made. Its copies, one "
            f"for each episode, would not have it, since they are made from the arguments of its constructor. Add an "
            f"argument, or pass a function that makes the whole environment"
        )
