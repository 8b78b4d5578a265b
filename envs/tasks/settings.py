"""The tables of a `task.toml`, schema 1.0 to 1.4, with Harbor's defaults. `without_effect` names other keys."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

User = str | int | None
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Variables = dict[str, str]

_DESCRIPTION = ("metadata", "source", "task", "version")
_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)
_SIZES = {"K": 1 / 1024, "M": 1, "G": 1024}


class _Table(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class _Networked(_Table):
    network_mode: Literal["public", "no-network", "allowlist"] | None = None


class Healthcheck(_Table):
    """A command that must succeed before the agent begins; as Docker's HEALTHCHECK."""

    command: str
    interval_sec: Annotated[float, Field(ge=0)] = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: Annotated[float, Field(ge=0)] = 0.0  # failures in this time are not counted
    start_interval_sec: Annotated[float, Field(ge=0)] = 5.0
    retries: Annotated[int, Field(ge=1)] = 3


class Machine(_Networked):
    """The `[environment]` of a task, or that of its verifier."""

    docker_image: str | None = None
    os: str = "linux"
    cpus: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    memory_mb: Annotated[int, Field(gt=0)] | None = None
    gpus: int | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] = []
    env: Variables = {}
    healthcheck: Healthcheck | None = None
    workdir: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, table: Any) -> Any:
        """Read the deprecated keys `memory = "2G"` and `allow_internet`."""
        if not isinstance(table, dict):
            return table
        renamed: dict[str, Any] = {}
        table = dict(table)
        if isinstance(size := table.get("memory"), str):
            renamed["memory_mb"] = _megabytes(size)
            del table["memory"]
        if isinstance(allowed := table.get("allow_internet"), bool):
            renamed["network_mode"] = "public" if allowed else "no-network"
            del table["allow_internet"]
        return {**renamed, **table}


class Agent(_Networked):
    timeout_sec: Seconds | None = None
    user: User = None


class Collect(_Table):
    """A command that runs in the agent's box after the agent, to write artifacts."""

    command: str
    service: str = "main"
    timeout_sec: Seconds = 60.0
    user: User = None


class Verifier(_Networked):
    timeout_sec: Seconds = 600.0
    env: Variables = {}
    user: User = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Machine | None = None
    collect: list[Collect] = []

    @model_validator(mode="after")
    def _agree(self) -> Verifier:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("without an environment of its own, or with environment_mode = 'separate'")
        return self

    @property
    def mode(self) -> Literal["shared", "separate"] | None:
        """Whether the verifier says that it runs in the agent's box, or in one of its own; None if it does not say."""
        return self.environment_mode or (None if self.environment is None else "separate")


class Artifact(_Table):
    source: str
    exclude: list[str] = []
    service: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_path(cls, entry: Any) -> Any:
        return {"source": entry} if isinstance(entry, str) else entry

    @field_validator("source")
    @classmethod
    def _stay_inside(cls, source: str) -> str:
        if ".." in source.split("/"):
            raise ValueError("a path without '..'")
        return source


class Step(_Table):
    name: Annotated[str, Field(pattern=r"^[^/\\]*[^/\\. ]$")]
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: list[Artifact] = []


class Solution(_Table):
    env: Variables = {}


class Settings(_Table):
    """A whole `task.toml`."""

    schema_version: str = "1.4"
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    environment: Machine = Machine()
    solution: Solution = Solution()
    artifacts: list[Artifact] = []
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"
    steps: list[Step] = []

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, table: dict[str, Any]) -> dict[str, Any]:
        return {"schema_version": table["version"], **table} if isinstance(table.get("version"), str) else table

    @field_validator("schema_version")
    @classmethod
    def _known(cls, version: str) -> str:
        if version not in ("1.0", "1.1", "1.2", "1.3", "1.4"):
            raise ValueError("a version from '1.0' to '1.4'")
        return version

    @field_validator("steps")
    @classmethod
    def _different(cls, steps: list[Step]) -> list[Step]:
        if len({step.name.casefold() for step in steps}) < len(steps):
            raise ValueError("steps of different names")
        return steps


def without_effect(table: BaseModel, place: str = "") -> Iterator[str]:
    """Yield the keys of a table, and of those in it, that are set and change nothing here."""
    for key, value in table:
        for number, entry in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(entry, _Table):
                yield from without_effect(
                    entry, f"{place}{key}.{number}." if isinstance(value, list) else f"{place}{key}."
                )
    yield from (place + key for key in table.model_extra or () if place or key not in _DESCRIPTION)


def _megabytes(size: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG])B?", size.strip().upper())
    if found is None:
        raise ValueError("a size such as '2G' or '512M'")
    return int(float(found[1]) * _SIZES[found[2]])


def resolve_variables(variables: Mapping[str, str], place: str) -> dict[str, str]:
    """Return variables with the host's in place of `${NAME}` and `${NAME:-default}`, where that is the whole value.

    Raises:
        ValueError: the host has no such variable, and there is no default.
    """
    resolved: dict[str, str] = {}
    for key, value in variables.items():
        found = _TEMPLATE.fullmatch(value)
        if found is not None:
            value = os.environ.get(found[1], found[2])
        if value is None:
            raise ValueError(f"{place}.{key} takes the variable {found and found[1]} of this machine, which is not set")
        resolved[key] = value
    return resolved
