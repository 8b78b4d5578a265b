"""All checks of an environment, in order."""

from __future__ import annotations

from collections.abc import Callable

from ..terminal.verdicts import Finding
from . import episodes, leaks, rewards, tools
from .subject import Subject

CHECKS: dict[str, Callable[[Subject], Finding]] = {
    "gymnasium contract": episodes.gymnasium_contract,
    "deterministic": episodes.deterministic,
    "groups": episodes.group_members_begin_alike,
    "episodes are apart": episodes.episodes_are_apart,
    "servers": tools.servers_keep_episodes_apart,
    "terminal signal": episodes.has_an_end,
    "schemas": tools.schemas,
    "rows' tools": tools.tools_of_rows,
    "valid calls": tools.valid_calls,
    "invalid calls": tools.invalid_calls,
    "hostile calls": tools.hostile_calls,
    "time-outs": tools.has_timeouts,
    "null agent": rewards.null_agent_earns_nothing,
    "oracle": rewards.oracle_is_best,
    "rewards": rewards.rewards_differ,
    "files": rewards.files_are_out_of_reach,
    "leaks": leaks.leaves_nothing,
    "blocking calls": tools.does_not_block,  # last: it looks at the episodes of all others
}


def check_environment(subject: Subject) -> dict[str, Finding]:
    """Return the finding of `plays`, and those of all checks unless no episode can be played at all."""
    findings = {"plays": episodes.plays(subject)}
    if findings["plays"].outcome == "fail" and not any(episode.turns for episode in subject.null_episodes):
        return findings
    for name, check in CHECKS.items():
        try:
            findings[name] = check(subject)
        except Exception as error:  # of the environment, outside an episode
            findings[name] = Finding("fail", f"{type(error).__name__}: {error}")
    return findings
