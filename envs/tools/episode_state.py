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
        """What changed until a later state: the reward's difference, new values, and changed entries of the dicts."""
        effects: dict[str, Any] = {}
        if later.reward != self.reward:  # as a difference, since other calls of the turn may give another reward
            effects["reward"] = later.reward - self.reward
        for name in ("terminated", "truncated"):
            if getattr(later, name) != getattr(self, name):
                effects[name] = getattr(later, name)
        for name in ("metrics", "report"):
            if changes := _changes(getattr(self, name), getattr(later, name)):
                effects[name] = changes
        return effects

    def after(self, effects: Mapping[str, Any]) -> EpisodeState:
        """This state with the effects that `effects_until` returned."""
        return EpisodeState(
            reward=self.reward + effects.get("reward", 0.0),
            terminated=effects.get("terminated", self.terminated),
            truncated=effects.get("truncated", self.truncated),
            metrics=_changed(self.metrics, effects.get("metrics", {})),
            report=_changed(self.report, effects.get("report", {})),
        )


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: value for key, value in after.items() if key not in before or before[key] != value}
    changes = {"set": jsonable(values), "deleted": [key for key in before if key not in after]}
    return {name: each for name, each in changes.items() if each}


def _changed(entries: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in entries.items() if key not in changes.get("deleted", [])}
    return kept | changes.get("set", {})
