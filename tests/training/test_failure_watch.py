"""Lost episodes: when training stops, and which failures and alarms are logged."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from gymnast.envs.core import StopReason
from gymnast.envs.episode import ToolCallRecord, Turn
from gymnast.records.alarms.rounds import NoSpreadAlarm, NoTurnRewardAlarm
from gymnast.trainer import RolloutError
from gymnast.trainer.rollout.failures import FailureWatch

from .made_episodes import episode, failed, specs


def watch(max_failure_rate: float = 0.5) -> Callable[..., None]:
    """Watches rounds of four episodes, some of which failed; `groups` is the number of groups to learn from."""
    failures = FailureWatch(max_failure_rate)

    def add(lost: int, groups: int, error: type[Exception] = ValueError) -> None:
        a = specs(1, 4)
        episodes = [*(failed(item, error("the tool broke")) for item in a[:lost]), *map(episode, a[lost:])]
        failures.add_round(episodes, played=4, failed=lost, samples=4 * groups)

    return add


def test_a_lost_round_is_skipped_and_a_streak_stops() -> None:
    add = watch(max_failure_rate=1.0)
    add(0, groups=1)
    for _ in range(8):
        add(4, groups=0)
    add(4, groups=0)
    add(0, groups=1)
    for _ in range(9):
        add(4, groups=0)
    with pytest.raises(RolloutError, match=r"last 10 rounds had no group.*4 of 4 episodes failed: 4 x step: Val"):
        add(4, groups=0)


def test_a_training_that_never_had_a_group_stops_early() -> None:
    add = watch()
    for _ in range(2):
        add(4, groups=0, error=TimeoutError)
    with pytest.raises(RolloutError, match=r"last 3 rounds.*4 x step: TimeoutError \(the tool broke\)"):
        add(4, groups=0, error=TimeoutError)


def test_failures_are_judged_over_ten_rounds() -> None:
    add = watch(max_failure_rate=0.5)
    for _ in range(9):
        add(2, groups=1)
    add(2, groups=1)  # half is allowed
    with pytest.raises(
        RolloutError, match=r"21 of 40 episodes of the last 10 rounds failed.*max_failure_rate=0\.5"
    ) as e:
        add(3, groups=1)
    assert "Traceback (most recent call last):" in str(e.value)
    assert str(e.value).count("Traceback") == 1


def test_each_kind_of_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    add = watch()
    for error in (ValueError, ValueError, OSError):
        add(1, groups=1, error=error)
    assert caplog.messages == [
        "1 of 4 episodes failed: 1 x step: ValueError (the tool broke)",
        "1 of 4 episodes failed: 1 x step: OSError (the tool broke)",
    ]
    add(4, groups=0)
    assert caplog.messages[-1].startswith("no group of this round can be learned from, so it is skipped: 4 of 4")


def test_retried_failures_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureWatch(0.5)
    episodes = [episode(spec) for spec in specs(1, 4)]
    for item in episodes[:2]:
        lost = failed(item.spec, OSError("the database is down")).failure
        assert lost is not None
        item.retried = [lost, lost]
    for _ in range(2):
        failures.add_round(episodes, played=4, failed=0, samples=4)
    assert caplog.messages == ["4 failures were tried again: 4 x step: OSError (the database is down)"]
    assert failures.latest == "step: OSError: the database is down"


def test_rewards_that_never_differ_warn_with_a_cause(caplog: pytest.LogCaptureFixture) -> None:
    alarm = NoSpreadAlarm()
    episodes = [episode(spec) for spec in specs(1, 4)]
    for item in episodes[:2]:
        item.stop = StopReason.MAX_TOKENS
    call = ToolCallRecord(name="look", call_id=None, outcome="exception", error="no such lamp")
    for item in episodes[2:]:
        item.turns = [Turn(message={"role": "assistant", "content": ""}, tool_calls=[call])]
    for _ in range(8):
        alarm.add(episodes, with_spread=0)
    [message] = caplog.messages
    assert message == (
        "no group has had spread for 5 rounds, so nothing is learned: all rewards of the last round were 1; 50% of "
        "the episodes are cut by max_tokens: raise max_completion_length; 2 of 2 calls of look end with the same "
        "error: no such lamp"
    )


def test_equal_rewards_beside_a_kl_are_not_said_to_teach_nothing(caplog: pytest.LogCaptureFixture) -> None:
    alarm = NoSpreadAlarm()
    for _ in range(5):
        alarm.add([episode(spec) for spec in specs(1, 4)], with_spread=0, other_terms=True)
    [message] = caplog.messages
    assert message.startswith("no group has had spread for 5 rounds, so only the KL or the entropy changes the weights")


def test_credit_for_turns_without_rewards_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    alarm = NoTurnRewardAlarm()
    for before_the_end in (1, *[0] * 8):
        alarm.add(rewarded=2, before_the_end=before_the_end)
    assert caplog.messages == []
    alarm = NoTurnRewardAlarm()
    for _ in range(8):
        alarm.add(rewarded=2, before_the_end=0)
    [message] = caplog.messages
    assert message.startswith("credit='turn', but in 5 rounds no turn before the last one of an episode had a reward")


def test_a_reward_that_is_never_set_warns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a program that has not set up logging
    alarm = NoSpreadAlarm()
    episodes = [episode(spec, reward=0.0) for spec in specs(1, 4)]
    episodes[0].stop = StopReason.MAX_TOKENS  # a quarter of the episodes: not the cause
    for _ in range(5):
        alarm.add(episodes, with_spread=0)
    assert capsys.readouterr().err == (
        "WARNING: no group has had spread for 5 rounds, so nothing is learned: all rewards of the last round were "
        "0; 75% of the episodes reach final_answer and are rewarded with 0: the answers are wrong, the check is too "
        "strict, or self.reward is never set or reached\n"
    )
