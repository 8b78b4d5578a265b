"""EpisodeState: the attributes of a `ToolEnv` by which a tool affects the episode."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cassettes.recorded_call import jsonable

if TYPE_CHECKING:
    from .tool_env import ToolEnv


class EpisodeState(NamedTuple):
    """A copy of these attributes."""

    reward: float
    terminated: bool
    truncated: bool
    metrics: dict[str, float]
    report: dict[str, Any]

    @classmethod
    def of(cls, environment: ToolEnv) -> EpisodeState:
        reward, terminated, truncated = environment._reward, environment._terminated, environment._truncated
        return cls(reward, terminated, truncated, dict(environment.metrics), jsonable(environment.report))

    def restore(self, environment: ToolEnv) -> None:
        """Set the attributes to this state."""
        environment._reward, environment._terminated, environment._truncated = self[:3]
        environment.metrics, environment.report = dict(self.metrics), copy.deepcopy(self.report)

    def effects_until(self, later: EpisodeState) -> dict[str, Any]:
        """The attributes that differ in a later state, and their values there; of a dict, the changed entries."""
        effects: dict[str, Any] = {}
        for name, before, after in zip(self._fields, self, later, strict=True):
            if isinstance(before, dict) and isinstance(after, dict):
                entries = {key: value for key, value in after.items() if key not in before or before[key] != value}
                effects |= {name: jsonable(entries)} if entries else {}
            elif before != after:
                effects[name] = after
        return effects

    def after(self, effects: Mapping[str, Any]) -> EpisodeState:
        """This state with the effects that `effects_until` returned."""
        entries = {name: {**getattr(self, name), **effects.get(name, {})} for name in ("metrics", "report")}
        return self._replace(**{**effects, **entries})
