"""All checks of an environment, in order."""

from __future__ import annotations

from collections.abc import Callable

from ..terminal.verdicts import Finding
from . import episodes, farms, leaks, rewards, tools
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
    "reward farms": farms.rewards_cannot_be_farmed,
    "files": rewards.files_are_out_of_reach,
    "leaks": leaks.leaves_nothing,
    "blocking calls": tools.does_not_block,  # last: it looks at the episodes of all others
}

OF_TOOLS = ("valid calls", "invalid calls", "hostile calls", "time-outs", "files")


def check_environment(subject: Subject) -> dict[str, Finding]:
    """Return the findings of all checks; those after `plays` are skipped if no environment can be made."""
    findings = {"plays": episodes.plays(subject)}
    played = subject.null_episodes + subject.random_episodes
    failures = [episode.failure for episode in played if episode.failure is not None]
    if any(failure.stage == "create" for failure in failures) or not any(episode.turns for episode in played):
        return findings | dict.fromkeys(CHECKS, Finding("skip", "not tried: first mend what `plays` names"))
    for name, check in CHECKS.items():
        try:
            is_idle = name in OF_TOOLS and not subject.tools
            findings[name] = Finding("skip", "there are no tools") if is_idle else check(subject)
        except Exception as error:  # of the environment, outside an episode
            findings[name] = Finding("fail", f"{type(error).__name__}: {error}")
    return findings
