"""The likeliest causes of equal rewards, which teach nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ...envs.core import StopReason
from ..files.episodes import EpisodeRow

LIMITS: Mapping[str, str] = {
    StopReason.MAX_TURNS: "max_turns",
    StopReason.MAX_TOOL_CALLS: "max_tool_calls",
    StopReason.MAX_TOKENS: "max_completion_length",
    StopReason.TURN_TRUNCATED: "max_turn_tokens",
    StopReason.CONTEXT_OVERFLOW: "max_model_len",
    StopReason.TIMEOUT: "episode_timeout",
}
"""The option that sets the limit behind a stop reason."""


def likely_causes(rows: Sequence[EpisodeRow]) -> list[str]:
    """Return the reasons for equal rewards that these episodes suggest, the likeliest first."""
    [(stop, count)] = Counter(row.stop for row in rows).most_common(1)
    share = f"{count / len(rows):.0%} of the episodes"
    calls = sum(len(row.tools) for row in rows)
    errors = Counter((error.tool, error.message) for row in rows for error in row.errors)
    causes = []
    if any(row.is_truncated for row in rows if row.stop == stop):
        causes.append(f"{share} are cut by {stop}: raise {LIMITS.get(stop, 'that limit')}")
    if not calls and any(row.has_tools for row in rows):
        causes.append("no episode calls a tool: compare the prompt and the chat template with the format of calls")
    if errors.total() > calls / 2:
        [((tool, message), _)] = errors.most_common(1)
        causes.append(f"{errors.total()} of {calls} tool calls fail, most often {tool}: {message}")
    if stop == StopReason.MALFORMED:
        causes.append(f"{share} end by malformed tool calls: read one of them")
    if stop == StopReason.MODEL_STOPPED and calls:
        causes.append(f"{share} end with an answer that calls no tool, so the final tool is never reached")
    if not causes and not any(row.reward for row in rows):
        causes.append(
            f"{share} reach {stop} and are rewarded with 0: the answers are wrong, the check is too strict, or "
            f"self.reward is never set or reached"
        )
    return causes
