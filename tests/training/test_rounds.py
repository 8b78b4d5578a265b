"""From episodes to training batches: groups, samples, tensors, schedules and rounds."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gymnast.envs.core import StopReason
from gymnast.envs.engine.rollout_engine import episode_specs
from gymnast.envs.episode import Episode, EpisodeSpec, Failure, TokenTrace, ToolCallRecord, Turn
from gymnast.trainer import RolloutError
from gymnast.trainer.learning.groups import form_groups
from gymnast.trainer.learning.samples import (
    Batch,
    EpisodeSamples,
    MicroBatch,
    Sample,
    make_micro_batch,
    micro_batches,
    split_evenly,
)
from gymnast.trainer.records.alarms import NoSpreadAlarm
from gymnast.trainer.rollout.failures import FailureWatch
from gymnast.trainer.rollout.round import Round
from gymnast.trainer.rollout.schedule import Schedule

from ..learning.rows import SETTINGS

PAD = 0


def trace_of(rng: random.Random, *, sampled: int | None = None) -> TokenTrace:
    """A trace of some turns. Sampled tokens have ids from 1000 on, all others below."""
    trace = TokenTrace(prompt_ids=[rng.randrange(1, 500) for _ in range(rng.randrange(1, 12))])
    for _ in range(rng.randrange(1, 4)):
        count = rng.randrange(1, 9) if sampled is None else sampled
        trace.append_sampled([rng.randrange(1000, 2000) for _ in range(count)], [-rng.random() for _ in range(count)])
        trace.append_observation([rng.randrange(500, 900) for _ in range(rng.randrange(5))])
    return trace


def episode(spec: EpisodeSpec, *, reward: float | None = 1.0, sampled: int = 3) -> Episode:
    trace = trace_of(random.Random(spec.member), sampled=sampled)
    return Episode(spec=spec, stop=StopReason.FINAL_ANSWER, reward=reward, traces=[trace])


def failed(spec: EpisodeSpec, error: BaseException | None = None) -> Episode:
    try:
        raise error or ValueError("the tool broke")
    except BaseException as caught:
        return Episode(spec=spec, failure=Failure.of("step", caught), traces=[trace_of(random.Random(0))])


def specs(groups: int = 2, members: int = 3) -> list[EpisodeSpec]:
    return episode_specs([{"n": n} for n in range(groups)], group_size=members, seed=0)


# Samples and tensors.


def test_the_mask_selects_exactly_the_sampled_tokens() -> None:
    rng = random.Random(0)
    traces = [trace_of(rng) for _ in range(20)]
    batch = make_micro_batch([Sample.of(each) for each in traces], pad_id=PAD)
    ids_BL, mask_BT = batch["input_ids"], batch["mask"]
    keep = mask_BT.shape[1]
    for row, trace in enumerate(traces):
        sampled = [token for token, mask in zip(trace.completion_ids, trace.mask, strict=True) if mask]
        logprobs = [value for value, mask in zip(trace.logprobs, trace.mask, strict=True) if mask]
        on = mask_BT[row] == 1
        assert ids_BL[row, -keep:][on].tolist() == sampled
        torch.testing.assert_close(batch["sampling_logprobs"][row][on], torch.tensor(logprobs))
        assert (batch["sampling_logprobs"][row][~on] == 0).all()
        assert (ids_BL[row][:-keep] < 1000).all()  # no sampled token is before the kept positions


def test_rows_are_padded_on_the_right_and_end_with_their_last_sampled_token() -> None:
    samples = [Sample.of(trace_of(random.Random(n))) for n in range(9)]
    batch = make_micro_batch(samples, pad_id=PAD)
    for row, each in enumerate(samples):
        ids = each.prompt_ids + each.completion_ids
        assert ids[-1] >= 1000
        assert batch["input_ids"][row].tolist() == ids + [PAD] * (batch["input_ids"].shape[1] - len(ids))
        assert batch["attention_mask"][row].tolist() == [int(n < len(ids)) for n in range(batch["input_ids"].shape[1])]
    lengths = [len(each.prompt_ids + each.completion_ids) for each in samples]
    assert batch["input_ids"].shape[1] == max(lengths)
    assert batch["mask"].shape[1] == max(lengths) - min(len(each.prompt_ids) for each in samples)


def test_the_observation_after_the_last_answer_is_trimmed() -> None:
    trace = TokenTrace(prompt_ids=[1, 2])
    trace.append_sampled([1000, 1001], [-0.5, -0.25])
    trace.append_observation([500])
    trace.append_sampled([1002], [-1.0])
    trace.append_observation([501, 502, 503])
    sample = Sample.of(trace)
    assert sample.completion_ids == [1000, 1001, 500, 1002]
    assert sample.mask == [1, 1, 0, 1]
    assert sample.sampling_logprobs == [-0.5, -0.25, 0.0, -1.0]


def test_logprobs_of_the_training_model_stand_where_their_tokens_do() -> None:
    samples = [Sample.of(trace_of(random.Random(n))) for n in range(6)]
    for each in samples:
        each.old_logprobs = torch.tensor([float(token) for token in each.completion_ids])
    batch = make_micro_batch(samples, pad_id=PAD)
    keep = batch["mask"].shape[1]
    on = batch["mask"] == 1
    assert torch.equal(batch["old_logprobs"][on], batch["input_ids"][:, -keep:][on].float())
    assert "ref_logprobs" not in batch


def numbered(count: int) -> list[Sample]:
    return [
        Sample(prompt_ids=[1], completion_ids=[n + 2], mask=[1], sampling_logprobs=[-1.0], advantages=torch.ones(1))
        for n in range(count)
    ]


@pytest.mark.parametrize(("count", "parts"), [(8, 2), (7, 2), (7, 4), (3, 3), (1, 1)])
def test_split_evenly(count: int, parts: int) -> None:
    samples = numbered(count)
    lists = split_evenly(samples, parts)
    assert [each for part in lists for each in part] == samples
    assert max(map(len, lists)) - min(map(len, lists)) <= 1


def test_split_evenly_may_leave_parts_empty() -> None:
    samples = numbered(2)
    lists = split_evenly(samples, 5)
    assert sorted(map(len, lists)) == [0, 0, 0, 1, 1]
    assert [each for part in lists for each in part] == samples


def of_lengths(*lengths: int) -> list[Sample]:
    return [
        Sample(prompt_ids=[1], completion_ids=[2] * (n - 1), mask=[1] * (n - 1), sampling_logprobs=[-1.0] * (n - 1))
        for n in lengths
    ]


def test_micro_batches_hold_their_tokens_with_padding() -> None:
    rng = random.Random(0)
    samples = of_lengths(*(rng.randrange(2, 60) for _ in range(50)))
    parts = micro_batches(samples, max_tokens=120)
    assert sorted(map(id, samples)) == sorted(id(each) for part in parts for each in part)
    sizes = [len(part) * max(each.length for each in part) for part in parts]
    assert max(sizes) <= 120
    padded = sum(sizes) / sum(each.length for each in samples)
    assert padded < 1.2  # rows of similar length share a micro-batch


def test_micro_batches_give_a_longer_row_a_pass_of_its_own() -> None:
    parts = micro_batches(of_lengths(5, 90, 4, 200), max_tokens=50)
    assert [[each.length for each in part] for part in parts] == [[200], [90], [5, 4]]


def test_micro_batches_have_a_limit_of_rows() -> None:
    samples = of_lengths(2, 3, 4, 5, 6)
    assert micro_batches(samples, max_tokens=None, max_rows=2) == [samples[:2], samples[2:4], samples[4:]]
    assert [len(part) for part in micro_batches(samples, max_tokens=100, max_rows=3)] == [3, 2]
    assert micro_batches(samples, max_tokens=None) == [samples]


def test_samples_without_a_gradient_are_counted_and_not_computed() -> None:
    samples = of_lengths(4, 6, 8)
    for sample, advantage in zip(samples, (0.0, 0.5, 0.0), strict=True):
        sample.advantages = advantage * torch.tensor(sample.mask)
    batch = Batch.of([[each] for each in samples], SETTINGS, pad_id=PAD)
    assert [tuple(each["input_ids"].shape) for each in batch.micro_batches] == [(1, 6)]
    assert (batch.loss_tokens, batch.sequences) == (3 + 5 + 7, 3)
    assert batch.micro_batches[0]["batch_loss_tokens"] == 15
    with_kl = Batch.of([[each] for each in samples], replace(SETTINGS, beta=0.1), pad_id=PAD)
    assert [tuple(each["input_ids"].shape) for each in with_kl.micro_batches] == [(3, 8)]


# Groups.


def test_groups_are_found_by_id_never_by_place() -> None:
    episodes = [episode(spec) for spec in specs(4, 3)]
    random.Random(3).shuffle(episodes)
    groups, dropped = form_groups(episodes)
    assert dropped == 0
    assert {frozenset(each.spec.group for each in group) for group in groups} == {
        frozenset({f"task-{n}@0"}) for n in range(4)
    }
    assert all(len(group) == 3 for group in groups)


def test_a_failed_member_leaves_and_a_group_of_one_is_dropped() -> None:
    a, b = specs(2, 3)[:3], specs(2, 3)[3:]
    episodes = [episode(a[0]), failed(a[1]), episode(a[2]), episode(b[0]), failed(b[1]), failed(b[2])]
    groups, dropped = form_groups(episodes)
    assert [[each.spec for each in group] for group in groups] == [[a[0], a[2]]]
    assert dropped == 1


def test_rows_without_loss_tokens_never_enter_a_baseline() -> None:
    a = specs(1, 4)
    episodes = [episode(a[0], reward=0.0), episode(a[1], sampled=0, reward=5.0), episode(a[2]), episode(a[3])]
    episodes[3].traces = []
    groups, dropped = form_groups(episodes)
    assert [[each.spec for each in group] for group in groups] == [[a[0], a[2]]]
    assert dropped == 0


def test_a_failure_that_counts_as_zero_stays() -> None:
    a = specs(1, 2)
    zero = failed(a[1])
    zero.reward = 0.0
    groups, _ = form_groups([episode(a[0]), zero])
    assert [each.reward for each in groups[0]] == [1.0, 0.0]


def test_an_episode_that_ran_out_of_time_leaves_its_group() -> None:
    a = specs(1, 3)
    late = episode(a[0])
    late.stop = StopReason.TIMEOUT
    groups, dropped = form_groups([late, episode(a[1]), episode(a[2])])
    assert (groups, dropped) == ([[episode(a[1]), episode(a[2])]], 0)


# Lost episodes.


def watch(max_failure_rate: float = 0.5) -> Callable[..., None]:
    """Watches rounds of four episodes, some of which failed; `groups` is the number of groups to learn from."""
    failures = FailureWatch(max_failure_rate)

    def add(lost: int, groups: int, error: type[Exception] = ValueError) -> None:
        a = specs(1, 4)
        episodes = [*(failed(each, error("the tool broke")) for each in a[:lost]), *map(episode, a[lost:])]
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
    episodes = [episode(each) for each in specs(1, 4)]
    for each in episodes[:2]:
        lost = failed(each.spec, OSError("the database is down")).failure
        assert lost is not None
        each.retried = [lost, lost]
    for _ in range(2):
        failures.add_round(episodes, played=4, failed=0, samples=4)
    assert caplog.messages == ["4 failures were tried again: 4 x step: OSError (the database is down)"]
    assert failures.latest == "step: OSError: the database is down"


def test_rewards_that_never_differ_warn_with_a_cause(caplog: pytest.LogCaptureFixture) -> None:
    alarm = NoSpreadAlarm()
    episodes = [episode(each) for each in specs(1, 4)]
    for each in episodes[:3]:
        each.stop = StopReason.MAX_TOKENS
    call = ToolCallRecord(name="look", call_id=None, outcome="exception", error="no such lamp")
    episodes[3].turns = [Turn(message={"role": "assistant", "content": ""}, tool_calls=[call])]
    for _ in range(8):
        alarm.add(episodes, with_spread=0)
    [message] = caplog.messages
    assert message == (
        "no group has had spread for 5 rounds, so nothing is learned: all rewards of the last round were 1; 75% of "
        "the episodes ended by max_tokens (the option max_completion_length); 1 of 1 tool calls failed, the last "
        "(look): no such lamp"
    )


def test_a_reward_that_is_never_set_warns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a program that has not set up logging
    alarm = NoSpreadAlarm()
    episodes = [episode(each, reward=0.0) for each in specs(1, 4)]
    episodes[0].stop = StopReason.MAX_TOKENS  # a quarter of the episodes: not the cause
    call = ToolCallRecord(name="look", call_id=None, outcome="exception", error="no such lamp")
    episodes[3].turns = [Turn(message={"role": "assistant", "content": ""}, tool_calls=[call])]
    for _ in range(5):
        alarm.add(episodes, with_spread=0)
    assert capsys.readouterr().err == (
        "WARNING: no group has had spread for 5 rounds, so nothing is learned: all rewards of the last round were "
        "0, and no step, grade or reward function gave another (self.reward was never set or reached); 75% of the "
        "episodes ended by final_answer; 1 of 1 tool calls failed, the last (look): no such lamp\n"
    )


def test_few_truncated_episodes_are_not_named_as_a_cause(caplog: pytest.LogCaptureFixture) -> None:
    alarm = NoSpreadAlarm()
    episodes = [episode(each) for each in specs(1, 4)]
    episodes[0].stop = StopReason.MAX_TOKENS
    for _ in range(5):
        alarm.add(episodes, with_spread=0)
    [message] = caplog.messages
    assert message.endswith("nothing is learned: all rewards of the last round were 1")


# The schedule.


def schedule(**options: Any) -> Schedule:
    defaults = {"num_tasks": 6, "num_generations": 2, "groups_per_process": 2, "num_processes": 1, "process_index": 0}
    defaults |= {"steps_per_generation": 2, "num_iterations": 1, "gradient_accumulation_steps": 2}
    return Schedule(**{**defaults, "seed": 0, "shuffle": True, **options})


def rows(count: int) -> list[dict[str, int]]:
    return [{"n": n} for n in range(count)]


@pytest.mark.parametrize("count", [1, 2, 5, 6, 7])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_task_is_played_equally_often(count: int, shuffle: bool) -> None:
    plan = schedule(num_tasks=count, shuffle=shuffle)
    played = [spec for index in range(count * 3) for spec in plan.specs(rows(count), index)]
    assert set(Counter(spec.task.row["n"] for spec in played).values()) == {3 * 2 * 2}
    sizes = Counter(spec.group for spec in played)
    assert set(sizes.values()) == {2}  # each visit to a task is a group of its own, also within one round
    assert len(sizes) == count * 6


def test_the_schedule_is_deterministic_and_follows_its_seed() -> None:
    first = [schedule().specs(rows(6), index) for index in range(6)]
    assert first == [schedule().specs(rows(6), index) for index in range(6)]
    order = [spec.task.row["n"] for specs in first for spec in specs]
    other = [spec.task.row["n"] for index in range(6) for spec in schedule(seed=1).specs(rows(6), index)]
    assert order != other
    assert order[:12] != order[12:24]  # another permutation in the next epoch
    seeds = [spec.seed for specs in first for spec in specs]
    assert len(set(seeds)) == len(seeds)
    members = first[0][:2]
    assert members[0].task.seed == members[1].task.seed


def test_processes_play_disjoint_whole_groups() -> None:
    alone = schedule(groups_per_process=4).specs(rows(6), 1)
    parts = [schedule(num_processes=2, process_index=index).specs(rows(6), 1) for index in range(2)]
    assert parts[0] + parts[1] == alone
    assert not {spec.group for spec in parts[0]} & {spec.group for spec in parts[1]}
    assert schedule(num_processes=2).batches_per_epoch == 2 * 2
    assert schedule(num_tasks=7).batches_per_epoch == 4 * 2


@pytest.mark.parametrize(("iterations", "steps", "accumulation"), [(1, 1, 1), (1, 2, 2), (3, 2, 4), (2, 4, 3)])
def test_every_batch_is_used_once(iterations: int, steps: int, accumulation: int) -> None:
    """An epoch has 3 rounds. Its last optimiser step may have fewer batches than the others."""
    plan = schedule(num_iterations=iterations, steps_per_generation=steps, gradient_accumulation_steps=accumulation)
    batches = 3 * iterations * steps
    assert plan.batches_per_epoch == batches
    firsts = [plan.batches_before(step) for step in range(3 * batches)]
    expected = [epoch * batches + first for epoch in range(3 * batches) for first in range(0, batches, accumulation)]
    assert firsts == expected[: len(firsts)]


def test_a_million_tasks() -> None:
    class Million(list[dict[str, int]]):
        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, index: Any) -> Any:
            return {"n": index}

    plan = schedule(num_tasks=1_000_000, groups_per_process=64)
    started = time.process_time()
    plan.specs(Million(), 0)
    assert time.process_time() - started < 1
    times = []
    for index in range(1, 11):
        started = time.process_time()
        plan.specs(Million(), index)
        times.append(time.process_time() - started)
    assert sorted(times)[5] < 0.01  # a permutation for each group would take seconds


def test_a_row_that_is_not_a_mapping_is_named() -> None:
    with pytest.raises(TypeError, match="the row of train-0 must be a mapping, got int: 5"):
        schedule(shuffle=False, num_tasks=1).specs([5], 0)  # type: ignore[list-item]


def test_an_environment_that_changes_its_row_does_not_change_the_data() -> None:
    data: list[dict[str, int]] = rows(6)
    [spec, *_] = schedule(shuffle=False).specs(data, 0)
    changed: Any = spec.task.row
    changed["n"] = 7
    assert data == rows(6)


# Rounds.


def episode_of(spec: EpisodeSpec) -> EpisodeSamples:
    token = 10 + 10 * spec.task.row["n"] + spec.member
    ones = torch.ones(1)
    return [Sample(prompt_ids=[1], completion_ids=[token], mask=[1], sampling_logprobs=[-1.0], advantages=ones)]


def test_a_round_is_saved_and_cut_into_batches(tmp_path: Path) -> None:
    episodes = [episode_of(spec) for spec in schedule().specs(rows(6), 0)]
    made = Round(7, episodes, parts=3, settings=SETTINGS, pad_id=PAD)
    made.save(tmp_path / "round.pt")
    again = Round.load(tmp_path / "round.pt", parts=3, settings=SETTINGS, pad_id=PAD)
    assert again.index == 7
    for one, other in zip(micro_batches_of(made), micro_batches_of(again), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    found = [token for batch in micro_batches_of(made) for token in batch["input_ids"][:, -1].tolist()]
    assert found == [sample.completion_ids[0] for [sample] in episodes]


def test_a_round_without_samples_has_batches_that_teach_nothing() -> None:
    batches = Round(0, [], parts=2, settings=SETTINGS, pad_id=PAD).batches
    assert [(batch.loss_tokens, batch.sequences) for batch in batches] == [(0, 0), (0, 0)]
    assert [[each["mask"].sum() for each in batch.micro_batches] for batch in batches] == [[0], [0]]


def micro_batches_of(made: Round) -> list[MicroBatch]:
    return [each for batch in made.batches for each in batch.micro_batches]
