"""From episodes to training batches: groups, samples, tensors, and the loader that plays them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from gymnast.envs.core import StopReason
from gymnast.envs.episode import Episode, EpisodeSpec, Failure, TokenTrace
from gymnast.envs.rollout import episode_specs
from gymnast.trainer import RolloutError
from gymnast.trainer.batch import Sample, make_batch, split_evenly
from gymnast.trainer.groups import check_failures, form_groups
from gymnast.trainer.loader import RolloutLoader, Schedule

PAD = 0


def trace_of(rng: random.Random, *, sampled: int | None = None) -> TokenTrace:
    """A trace of some turns; sampled tokens are 1000 and more, all others below."""
    trace = TokenTrace(prompt_ids=[rng.randrange(1, 500) for _ in range(rng.randrange(1, 12))])
    for _ in range(rng.randrange(1, 4)):
        count = rng.randrange(1, 9) if sampled is None else sampled
        trace.append_sampled([rng.randrange(1000, 2000) for _ in range(count)], [-rng.random() for _ in range(count)])
        trace.append_observation([rng.randrange(500, 900) for _ in range(rng.randrange(5))])
    return trace


def episode(spec: EpisodeSpec, *, reward: float | None = 1.0, sampled: int = 3) -> Episode:
    trace = trace_of(random.Random(spec.member), sampled=sampled)
    return Episode(spec=spec, stop=StopReason.FINAL_ANSWER, reward=reward, trace=trace)


def failed(spec: EpisodeSpec, error: BaseException | None = None) -> Episode:
    try:
        raise error or ValueError("the tool broke")
    except BaseException as caught:
        return Episode(spec=spec, failure=Failure.of("step", caught), trace=trace_of(random.Random(0)))


def specs(groups: int = 2, members: int = 3) -> list[EpisodeSpec]:
    return episode_specs([{"n": n} for n in range(groups)], group_size=members, seed=0)


# Samples and tensors.


def test_the_mask_selects_exactly_the_sampled_tokens() -> None:
    rng = random.Random(0)
    episodes = [Episode(spec=spec, reward=1.0, trace=trace_of(rng)) for spec in specs(5, 4)]
    batch = make_batch([Sample.of(each) for each in episodes], pad_id=PAD)
    ids_BL, mask_BT = batch["input_ids"], batch["mask"]
    keep = mask_BT.shape[1]
    for row, each in enumerate(episodes):
        trace = each.trace
        assert trace is not None
        sampled = [token for token, mask in zip(trace.completion_ids, trace.mask, strict=True) if mask]
        logprobs = [value for value, mask in zip(trace.logprobs, trace.mask, strict=True) if mask]
        on = mask_BT[row] == 1
        assert ids_BL[row, -keep:][on].tolist() == sampled
        torch.testing.assert_close(batch["sampling_logprobs"][row][on], torch.tensor(logprobs))
        assert (batch["sampling_logprobs"][row][~on] == 0).all()
        assert (ids_BL[row][:-keep] < 1000).all()  # nothing that was sampled stands before the kept positions


def test_rows_are_padded_on_the_right_and_end_with_their_last_sampled_token() -> None:
    samples = [Sample.of(Episode(spec=spec, trace=trace_of(random.Random(n)))) for n, spec in enumerate(specs(3, 3))]
    batch = make_batch(samples, pad_id=PAD)
    for row, each in enumerate(samples):
        ids = each.prompt_ids + each.completion_ids
        assert ids[-1] >= 1000
        assert batch["input_ids"][row].tolist() == ids + [PAD] * (batch["input_ids"].shape[1] - len(ids))
        assert batch["attention_mask"][row].tolist() == [int(n < len(ids)) for n in range(batch["input_ids"].shape[1])]
    lengths = [len(each.prompt_ids + each.completion_ids) for each in samples]
    assert batch["input_ids"].shape[1] == max(lengths)
    assert batch["mask"].shape[1] == max(lengths) - min(len(each.prompt_ids) for each in samples)


def test_what_the_observation_after_the_last_answer_says_is_trimmed() -> None:
    trace = TokenTrace(prompt_ids=[1, 2])
    trace.append_sampled([1000, 1001], [-0.5, -0.25])
    trace.append_observation([500])
    trace.append_sampled([1002], [-1.0])
    trace.append_observation([501, 502, 503])
    sample = Sample.of(Episode(spec=specs()[0], trace=trace))
    assert sample.completion_ids == [1000, 1001, 500, 1002]
    assert sample.mask == [1, 1, 0, 1]
    assert sample.sampling_logprobs == [-0.5, -0.25, 0.0, -1.0]


def test_a_masked_sample_keeps_its_place_and_teaches_nothing() -> None:
    found = Episode(spec=specs()[0], trace=trace_of(random.Random(1)))
    sample, masked = Sample.of(found), Sample.of(found, masked=True)
    assert masked.completion_ids == sample.completion_ids
    assert masked.mask == [0] * len(sample.mask)
    nothing = Sample.of(Episode(spec=specs()[0], trace=TokenTrace(prompt_ids=[1])), masked=True)
    assert (nothing.completion_ids, nothing.mask, nothing.sampling_logprobs) == ([], [], [])


def test_logprobs_of_the_training_model_stand_where_their_tokens_do() -> None:
    samples = [Sample.of(Episode(spec=spec, trace=trace_of(random.Random(n)))) for n, spec in enumerate(specs(2, 3))]
    for each in samples:
        each.old_logprobs = torch.tensor([float(token) for token in each.completion_ids])
    batch = make_batch(samples, pad_id=PAD)
    keep = batch["mask"].shape[1]
    on = batch["mask"] == 1
    assert torch.equal(batch["old_logprobs"][on], batch["input_ids"][:, -keep:][on].float())
    assert "ref_logprobs" not in batch


def numbered(count: int) -> list[Sample]:
    return [
        Sample(prompt_ids=[1], completion_ids=[n + 2], mask=[1], sampling_logprobs=[-1.0], advantage=1.0)
        for n in range(count)
    ]


@pytest.mark.parametrize(("count", "parts"), [(8, 2), (7, 2), (7, 4), (3, 3), (1, 1)])
def test_split_evenly(count: int, parts: int) -> None:
    samples = numbered(count)
    lists = split_evenly(samples, parts)
    assert [each for part in lists for each in part] == samples
    assert max(map(len, lists)) - min(map(len, lists)) <= 1


def test_split_evenly_fills_parts_that_would_be_empty() -> None:
    samples = numbered(2)
    lists = split_evenly(samples, 5)
    assert [len(part) for part in lists] == [1] * 5
    teaching = [each for part in lists for each in part if sum(each.mask)]
    assert teaching == samples
    assert sum(make_batch(part, pad_id=PAD)["mask"].sum().item() for part in lists) == 2


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
    episodes[3].trace = None
    groups, dropped = form_groups(episodes)
    assert [[each.spec for each in group] for group in groups] == [[a[0], a[2]]]
    assert dropped == 0


def test_a_failure_that_counts_as_zero_stays() -> None:
    a = specs(1, 2)
    zero = failed(a[1])
    zero.reward = 0.0
    groups, _ = form_groups([episode(a[0]), zero])
    assert [each.reward for each in groups[0]] == [1.0, 0.0]


def test_too_many_failures_stop_with_the_first_tracebacks() -> None:
    a = specs(2, 4)
    others = [failed(spec, OSError("the disk is full")) for spec in a[4:6]]
    episodes = [*map(failed, a[:3]), *map(episode, a[3:4]), *others, *map(episode, a[6:])]
    groups, _ = form_groups(episodes)
    check_failures(episodes, groups, 0.7)
    with pytest.raises(RolloutError, match=r"5 of 8 episodes failed, more than max_failure_rate=0\.5 allows") as error:
        check_failures(episodes, groups, 0.5)
    text = str(error.value)
    assert text.count("ValueError: the tool broke") == 1  # one of each kind
    assert text.count("OSError: the disk is full") == 1
    assert "task-0@0[0], step:\nTraceback (most recent call last):" in text


def test_a_step_without_groups_stops() -> None:
    a = specs(2, 2)
    episodes = [episode(a[0]), failed(a[1]), episode(a[2]), episode(a[3], sampled=0)]
    groups, dropped = form_groups(episodes)
    assert dropped == 2
    with pytest.raises(RolloutError, match=r"1 of 4 episodes failed, and no group has two members left"):
        check_failures(episodes, groups, 1.0)


# The schedule.


def schedule(**options: Any) -> Schedule:
    defaults = {"num_tasks": 6, "num_generations": 2, "groups_per_process": 2, "num_processes": 1, "process_index": 0}
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
    assert schedule(num_processes=2).rounds_per_epoch == 2
    assert schedule(num_tasks=7).rounds_per_epoch == 4


# The loader.


def loader(
    plan: Schedule, position: int = 0, *, placeholders: bool = True, **options: int
) -> tuple[RolloutLoader, list[list[EpisodeSpec]]]:
    played: list[list[EpisodeSpec]] = []

    def play(asked: list[EpisodeSpec]) -> list[Sample]:
        played.append(asked)
        return [sample_of(spec) for spec in asked]

    sizes = {"steps_per_generation": 2, "num_iterations": 1, **options}
    made = RolloutLoader(
        rows(plan.num_tasks), plan, play, position=lambda: position, placeholders=placeholders, pad_id=PAD, **sizes
    )
    return made, played


def sample_of(spec: EpisodeSpec) -> Sample:
    token = 10 + 10 * spec.task.row["n"] + spec.member
    return Sample(prompt_ids=[1], completion_ids=[token], mask=[1], sampling_logprobs=[-1.0])


def tokens(batches: Sequence[dict[str, Any]]) -> list[list[int]]:
    return [batch["input_ids"][:, -1].tolist() if batch else [] for batch in batches]


@pytest.mark.parametrize(("iterations", "steps"), [(1, 1), (1, 2), (3, 2), (2, 4)])
def test_length_and_reuse(iterations: int, steps: int) -> None:
    made, played = loader(schedule(), num_iterations=iterations, steps_per_generation=steps)
    found = tokens(list(made))
    assert len(found) == len(made) == 3 * iterations * steps
    assert len(played) == 3
    for index in range(3):
        mine = found[index * iterations * steps : (index + 1) * iterations * steps]
        assert mine == mine[:steps] * iterations  # the same batches again
        expected = [sample_of(spec).completion_ids[0] for spec in played[index]]
        assert sorted(token for batch in mine[:steps] for token in batch) == sorted(expected)


def test_batches_are_made_when_they_are_asked_for() -> None:
    """Rollouts of the second round must use the weights that the first one trained."""
    made, played = loader(schedule())
    batches = iter(made)
    for _ in range(2):
        next(batches)
    assert len(played) == 1
    next(batches)
    assert len(played) == 2


@pytest.mark.parametrize("position", [0, 1, 2, 3, 5, 6, 7, 10])
def test_resuming_continues_where_training_stood(position: int) -> None:
    """Of the batches before the position, transformers throws as many away as it is given placeholders."""
    epochs = [tokens(list(loader(schedule(), epoch * 6)[0])) for epoch in range(2)]
    made, played = loader(schedule(), position)
    found = tokens(list(made))
    done = position % 6
    assert len(found) == len(made)
    assert found[:done] == [[]] * done
    assert found[done:] == epochs[position // 6][done:]
    assert len(played) == 3 - done // 2  # no round is played for placeholders alone


def test_without_placeholders_the_epoch_is_whole() -> None:
    made, _ = loader(schedule(), 8, placeholders=False)
    assert tokens(list(made)) == tokens(list(loader(schedule(), 6)[0]))


def test_an_epoch_is_another_one_than_the_last() -> None:
    make: Callable[[int], Any] = lambda position: tokens(list(loader(schedule(), position)[0]))  # noqa: E731
    assert make(0) != make(6)
    assert Counter(token for batch in make(0) for token in batch) == Counter(
        token for batch in make(6) for token in batch
    )
