"""The likeliest causes of a round's rewards, by the reward that each explains."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ...envs.core import StopReason
from ...envs.runtime.places import at_place
from ..files.episodes import EpisodeRow, ToolError

LIMITS: Mapping[str, str] = {
    StopReason.MAX_TURNS: "max_turns",
    StopReason.MAX_TOOL_CALLS: "max_tool_calls",
    StopReason.MAX_TOKENS: "max_completion_length",
    StopReason.TURN_TRUNCATED: "max_turn_tokens",
    StopReason.CONTEXT_OVERFLOW: "max_model_len",
    StopReason.TIME_LIMIT: "time_scale of the TaskEnv",
    StopReason.TIMEOUT: "episode_timeout",
}
"""The option of a training for each stop reason that is a limit."""

_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(kw_only=True, slots=True, frozen=True)
class Cause:
    """A reason why episodes of a round earn less than the best one."""

    kind: str  # as in `Alarm.kind`, where an alarm says the same
    mark: str  # the stop reason, the kind of the failure, or the tool and its error without numbers
    text: str
    weight: float  # the part of the reward that it explains, at most 1
    example: EpisodeRow  # an episode that shows it


def limit_of(stop: str, *, in_evaluation: bool) -> str:
    """Return the option that sets the limit behind a stop reason."""
    if in_evaluation and stop == StopReason.TURN_TRUNCATED:
        return "--max-tokens of gymnast eval, or max_turn_tokens of a trainer"
    return LIMITS.get(stop, "that limit")


def alike(message: str) -> str:
    """Return the first line of an error without its numbers: "7 is too high" and "9 is too high" are one error."""
    return _NUMBER.sub("#", message.partition("\n")[0])


def blame(row: EpisodeRow) -> dict[tuple[str, str], float]:
    """Return the kinds and marks of all that may have cost an episode its reward, each with the part it explains.

    A tool's bug explains as much as its part of that tool's calls. A mistake of the model, of which the tool tells it,
    explains no more than its part of all calls, as the model can do better in its next call.
    """
    if row.failure:
        return {("failures", row.kind_of_failure): 1.0}
    found: dict[tuple[str, str], float] = {}
    calls = Counter(row.tools)
    for (tool, outcome, mark), count in Counter((err.tool, err.outcome, _mark_of(err)) for err in row.errors).items():
        is_fault = outcome in ("exception", "timeout")
        found["tool errors", mark] = count / (calls[tool] if is_fault else calls.total())
    if row.is_truncated:
        found["truncation", row.stop] = 1.0
    elif row.stop == StopReason.MALFORMED:
        found["malformed", row.stop] = 1.0
    elif row.has_tools and not row.tools:
        found["no calls", row.stop] = 1.0
    elif row.stop == StopReason.MODEL_STOPPED and row.tools:
        found["no final call", row.stop] = 1.0
    left = 1 - max([len(row.errors) / max(1, len(row.tools)), *found.values()])
    return found | ({("answers", row.stop): left} if left > 0 else {})


def _mark_of(error: ToolError) -> str:
    return f"{error.tool}: {alike(error.message)}"


def likely_causes(rows: Sequence[EpisodeRow], before: Sequence[EpisodeRow] = ()) -> list[Cause]:
    """Return the causes of the rewards of these episodes, the likeliest first.

    A cause weighs as much as the reward that its episodes lose, compared with the best one. Where all rewards are
    equal, it weighs as much as the share of its episodes. With episodes of an earlier step, what was lost there already
    does not weigh.
    """
    rewards = [row.reward for row in [*rows, *before] if row.reward is not None]
    best, worst = max(rewards, default=0.0), min(rewards, default=0.0)
    now, earlier = ([(row, blame(row), _loss(row, best, worst)) for row in part] for part in (rows, before))
    causes = []
    for key in dict.fromkeys(key for _, blamed, _ in now for key in blamed):
        concerned = [(row, blamed[key] * loss) for row, blamed, loss in now if key in blamed]
        lost_before = [blamed[key] * loss for _, blamed, loss in earlier if key in blamed]
        weight = sum(lost for _, lost in concerned) / len(rows) - sum(lost_before) / max(1, len(before))
        if weight <= 0 or (key[0] == "answers" and best == worst != 0):  # equal answers, and no better one is known
            continue
        example, _ = max(concerned, key=lambda pair: pair[1])
        at_first = f" ({len(lost_before) / len(before):.0%} at first)" if before else ""
        text = _text(key, [row for row, _ in concerned], rows, at_first)
        causes.append(Cause(kind=key[0], mark=key[1], text=text, weight=weight, example=example))
    return sorted(causes, key=lambda cause: -cause.weight)


def _loss(row: EpisodeRow, best: float, worst: float) -> float:
    """Return the part of the reward that an episode lost: 0 is the best of all, 1 the worst, or without a reward."""
    return 1.0 if row.reward is None or best == worst else (best - row.reward) / (best - worst)


def _text(key: tuple[str, str], concerned: Sequence[EpisodeRow], rows: Sequence[EpisodeRow], at_first: str) -> str:
    """Return a cause as a sentence."""
    kind, mark = key
    share = f"{len(concerned) / len(rows):.0%} of the episodes{at_first}"
    earned = _earned(concerned, rows)
    match kind:
        case "failures":
            said = f"fail: {concerned[0].failure}{at_place(concerned[0].traceback)}"
            return f"{share} {said}; such an episode has no reward and is not counted"
        case "tool errors":
            errors = [error for row in concerned for error in row.errors if _mark_of(error) == mark]
            calls = sum(row.tools.count(errors[0].tool) for row in rows)
            said = f"{len(errors)} of {calls} calls of {errors[0].tool} end with the same error"
            return f"{said}: {errors[0].message}{at_place(errors[0].traceback)}"
        case "truncation":
            limit = limit_of(mark, in_evaluation=concerned[0].evaluation is not None)
            return f"{share} are cut by {mark}{earned}: raise {limit}"
        case "malformed":
            return f"{share} end by malformed tool calls{earned}: read one of them"
        case "no calls":
            return f"{share} call no tool{earned}: compare the prompt and the chat template with the format of calls"
        case "no final call":
            return f"{share} end with an answer that calls no tool{earned}: they never reach the final tool"
    if any(row.reward for row in concerned):
        of_one = "one task" if concerned[0].evaluation is not None else "one group"
        return f"{share} reach {mark}, and many earn less than the best{earned}: compare two episodes of {of_one}"
    reasons = "the answers are wrong, the check is too strict, or self.reward is never set or reached"
    return f"{share} reach {mark} and are rewarded with 0: {reasons}"


def _earned(concerned: Sequence[EpisodeRow], rows: Sequence[EpisodeRow]) -> str:
    """Return the mean rewards of the episodes of a cause and of the others, where both are known and differ."""
    places = {id(row) for row in concerned}
    others = [row.reward for row in rows if row.reward is not None and id(row) not in places]
    mine = [row.reward for row in concerned if row.reward is not None]
    if not mine or not others or fmean(mine) == fmean(others):
        return ""
    return f" (mean reward {fmean(mine):.3g}, of the others {fmean(others):.3g})"
