"""From `environment=...` to fresh environments, and the ids that `gymnasium.make` knows."""

from __future__ import annotations

import importlib
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from .core import Environment
from .episode import EpisodeSpec

EnvironmentLike = (
    gymnasium.Env[Any, Any]
    | type[gymnasium.Env[Any, Any]]
    | Callable[[], gymnasium.Env[Any, Any]]
    | str
    | Mapping[str, Any]
)
"""What `environment=` takes: a prototype, a class, a factory, a Gymnasium id, or a dict of these."""

Factory = Callable[[], gymnasium.Env[Any, Any]]

ENVIRONMENT_COLUMN = "environment"  # the row's column that chooses among a dict of environments


def register_environments() -> None:
    """Register the environments that come with gymnast; done when `gymnast.envs` is imported, without loading them."""
    if "gymnast/Calculator-v0" not in gymnasium.registry:
        gymnasium.register(id="gymnast/Calculator-v0", entry_point="gymnast.envs.calculator:Calculator")


class EnvironmentSource:
    """Makes a fresh environment for each episode."""

    def __init__(self, factories: Mapping[str | None, Factory]) -> None:
        self._factories = dict(factories)
        # By id, since environments need not be hashable: a dataclass is not.
        self._made: weakref.WeakValueDictionary[int, gymnasium.Env[Any, Any]] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()  # environments are made in worker threads

    @classmethod
    def of(cls, environment: EnvironmentLike) -> EnvironmentSource:
        """The source that an `environment=` argument means.

        - a prototype: copies are made from its recorded constructor arguments, which the copies share;
        - a class or a factory: called without arguments;
        - a Gymnasium id: `gymnasium.make`;
        - a dict of these: the row's `environment` column chooses.

        Raises:
            TypeError: it is none of these.
            ValueError: the dict is empty.
            gymnasium.error.Error: the id is not registered.
        """
        if isinstance(environment, Mapping):
            if not environment:
                raise ValueError("environment is an empty dict: give it at least one environment")
            return cls({str(name): _factory(each) for name, each in environment.items()})
        return cls({None: _factory(environment)})

    def create(self, spec: EpisodeSpec) -> gymnasium.Env[Any, Any]:
        """A fresh environment for this episode.

        Raises:
            TypeError: a factory returned something else, or the same environment again.
            ValueError: the row does not choose one of several environments.
        """
        environment = self._factories[self.choose(spec.task.row)]()
        if not isinstance(environment, gymnasium.Env):
            raise TypeError(f"the environment factory returned {type(environment).__name__}, not a gymnasium.Env")
        with self._lock:
            if id(environment) in self._made:
                raise TypeError(
                    f"the environment factory returned the same {type(environment).__name__} again; every episode "
                    f"needs a fresh one"
                )
            self._made[id(environment)] = environment
        return environment

    def choose(self, row: Mapping[str, Any]) -> str | None:
        """Which environment a row is played in; None where there is only one without a name.

        Raises:
            ValueError: the row does not choose one of several environments.
        """
        if None in self._factories:
            return None
        name = row.get(ENVIRONMENT_COLUMN)
        if not isinstance(name, str) or name not in self._factories:
            raise ValueError(
                f"the row's {ENVIRONMENT_COLUMN!r} column must name one of {sorted(map(str, self._factories))}, "
                f"got {name!r}"
            )
        return name


def _factory(environment: Any) -> Factory:
    if isinstance(environment, gymnasium.Env):
        _copy_of(environment).close()  # now, so that a prototype that cannot be copied is refused at once
        return lambda: _copy_of(environment)
    if isinstance(environment, type):
        if issubclass(environment, gymnasium.Env):
            return environment
    elif isinstance(environment, str):
        module, _, name = environment.rpartition(":")
        if module:
            importlib.import_module(module)  # "module:id", as gymnasium.make takes it
        gymnasium.spec(name)  # an unknown id is an error now, with Gymnasium's near names
        return lambda: gymnasium.make(name, disable_env_checker=True)
    elif callable(environment):
        return cast(Factory, environment)
    raise TypeError(
        f"environment must be an Environment, an Environment class, a function that returns one, a Gymnasium id, or a "
        f"dict of these, got {environment!r}"
    )


def _copy_of(environment: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    if isinstance(environment, Environment):
        return environment.clone()
    if isinstance(environment, gymnasium.Wrapper) and isinstance(environment, RecordConstructorArgs):
        arguments = {name: value for name, value in environment._saved_kwargs.items() if name != "env"}
        return type(environment)(_copy_of(environment.env), **arguments)
    raise TypeError(
        f"{type(environment).__name__} cannot be copied, since its constructor arguments were not recorded; pass a "
        f"function that makes one instead: environment=lambda: {type(environment).__name__}(...)"
    )
