"""All checks of an environment, in order."""

from __future__ import annotations

from collections.abc import Iterator

from ..terminal.verdicts import Verdict
from .episodes import (
    deterministic,
    episodes_are_apart,
    group_members_begin_alike,
    gymnasium_contract,
    has_an_end,
    plays,
)
from .leaks import leaves_nothing
from .rewards import files_are_out_of_reach, null_agent_earns_nothing, oracle_is_best, rewards_differ
from .subject import Check, Subject
from .tools import (
    does_not_block,
    has_timeouts,
    hostile_calls,
    invalid_calls,
    schemas,
    servers_keep_episodes_apart,
    tools_of_rows,
    valid_calls,
)

CHECKS: list[Check] = [
    gymnasium_contract,
    deterministic,
    group_members_begin_alike,
    episodes_are_apart,
    servers_keep_episodes_apart,
    has_an_end,
    schemas,
    tools_of_rows,
    valid_calls,
    invalid_calls,
    hostile_calls,
    has_timeouts,
    null_agent_earns_nothing,
    oracle_is_best,
    rewards_differ,
    files_are_out_of_reach,
    leaves_nothing,
    does_not_block,  # last: it looks at the episodes of all others
]


def check_environment(subject: Subject) -> Iterator[Verdict]:
    """The verdicts of all checks; the others are left out if episodes cannot be played at all."""
    verdict = plays(subject)
    yield verdict
    if verdict.outcome == "fail" and not any(episode.turns for episode in subject.null_episodes):
        return
    for check in CHECKS:
        try:
            yield check(subject)
        except Exception as error:  # of the environment, outside an episode
            yield Verdict(check.__name__.replace("_", " "), "fail", f"{type(error).__name__}: {error}")
