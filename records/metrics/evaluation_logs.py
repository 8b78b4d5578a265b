"""The logs of evaluations: shared by the trainer's displays, which show them as they come, and the viewer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(kw_only=True, slots=True, frozen=True)
class EvaluationLog:
    """One evaluation of a data set."""

    prefix: str
    """The beginning of the names: `eval_`, or `eval_easy_` for `easy`, one of several data sets."""
    metrics: Mapping[str, Any]
    """The metrics by their plain names, such as `reward`."""

    @classmethod
    def of(cls, log: Mapping[str, Any]) -> EvaluationLog | None:
        """Return the evaluation that a log is of; None for a log of a training step, or the summary at the end."""
        ends = [name for name in log if name.endswith("_runtime")]
        if not ends or not log.keys().isdisjoint({"loss", "reward", "train_runtime"}):
            return None
        prefix = min(ends, key=len).removesuffix("runtime")
        return cls(prefix=prefix, metrics={name.removeprefix(prefix): value for name, value in log.items()})

    @property
    def title(self) -> str:
        """`evaluation`, or `evaluation on easy`."""
        data_set = self.prefix.removeprefix("eval_").removesuffix("_")
        return f"evaluation on {data_set}" if data_set else "evaluation"
