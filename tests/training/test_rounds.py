"""Groups, the schedule of tasks, and rounds."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch import nn
from transformers import TrainerCallback

from gymnast.envs.core import StopReason
from gymnast.envs.episode import EpisodeSpec
from gymnast.envs.tokens import ImageSpan
from gymnast.trainer.learning.advantages import this_process_only
from gymnast.trainer.learning.groups import form_groups
from gymnast.trainer.learning.samples import EpisodeSamples, MicroBatch, Sample
from gymnast.trainer.learning.scoring import Scorer
from gymnast.trainer.loop.steps import Round
from gymnast.trainer.rollout.schedule import Schedule

from ..envs.pictures import picture
from ..learning.rows import SETTINGS
from .buttons import ROWS, Buttons, make_trainer
from .made_episodes import episode, failed, specs

SCORER = Scorer(model=nn.Identity(), settings=SETTINGS, reference=None, gather=this_process_only)

# Groups.


def test_groups_are_found_by_id_never_by_place() -> None:
    episodes = [episode(spec) for spec in specs(4, 3)]
    random.Random(3).shuffle(episodes)
    groups, dropped = form_groups(episodes)
    assert dropped == 0
    assert {frozenset(item.spec.group for item in group) for group in groups} == {
        frozenset({f"task-{n}@0"}) for n in range(4)
    }
    assert all(len(group) == 3 for group in groups)


def test_a_failed_member_leaves_and_a_group_of_one_is_dropped() -> None:
    a, b = specs(2, 3)[:3], specs(2, 3)[3:]
    episodes = [episode(a[0]), failed(a[1]), episode(a[2]), episode(b[0]), failed(b[1]), failed(b[2])]
    groups, dropped = form_groups(episodes)
    assert [[item.spec for item in group] for group in groups] == [[a[0], a[2]]]
    assert dropped == 1


def test_rows_without_loss_tokens_never_enter_a_baseline() -> None:
    a = specs(1, 4)
    episodes = [episode(a[0], reward=0.0), episode(a[1], sampled=0, reward=5.0), episode(a[2]), episode(a[3])]
    episodes[3].traces = []
    groups, dropped = form_groups(episodes)
    assert [[item.spec for item in group] for group in groups] == [[a[0], a[2]]]
    assert dropped == 0


def test_a_failure_that_counts_as_zero_stays() -> None:
    a = specs(1, 2)
    zero = failed(a[1])
    zero.reward = 0.0
    groups, _ = form_groups([episode(a[0]), zero])
    assert [group.reward for group in groups[0]] == [1.0, 0.0]


def test_an_episode_that_ran_out_of_time_leaves_its_group() -> None:
    a = specs(1, 3)
    late = episode(a[0])
    late.stop = StopReason.TIMEOUT
    groups, dropped = form_groups([late, episode(a[1]), episode(a[2])])
    assert (groups, dropped) == ([[episode(a[1]), episode(a[2])]], 0)


# The schedule.


def schedule(**options: Any) -> Schedule:
    defaults = {"rows": rows(6), "num_generations": 2, "groups_per_process": 2, "num_processes": 1, "process_index": 0}
    defaults |= {"steps_per_generation": 2, "num_iterations": 1, "gradient_accumulation_steps": 2}
    return Schedule(**{**defaults, "seed": 0, "data_seed": 0, "shuffle": True, **options})


def rows(count: int) -> list[dict[str, int]]:
    return [{"n": n} for n in range(count)]


@pytest.mark.parametrize("count", [1, 2, 5, 6, 7])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_task_is_played_equally_often(count: int, shuffle: bool) -> None:
    plan = schedule(rows=rows(count), shuffle=shuffle)
    played = [spec for index in range(count * 3) for spec in plan.specs(index)]
    assert set(Counter(spec.task.row["n"] for spec in played).values()) == {3 * 2 * 2}
    sizes = Counter(spec.group for spec in played)
    assert set(sizes.values()) == {2}  # each visit to a task is a group of its own, also within one round
    assert len(sizes) == count * 6


def test_the_schedule_is_deterministic_and_follows_its_seed() -> None:
    first = [schedule().specs(index) for index in range(6)]
    assert first == [schedule().specs(index) for index in range(6)]
    order = [spec.task.row["n"] for specs in first for spec in specs]
    other = [spec.task.row["n"] for index in range(6) for spec in schedule(seed=1).specs(index)]
    assert order == other  # `data_seed` decides the order, and `seed` the episodes
    other = [spec.task.row["n"] for index in range(6) for spec in schedule(data_seed=1).specs(index)]
    assert order != other
    assert order[:12] != order[12:24]  # another permutation in the next epoch
    others = [spec.seed for index in range(6) for spec in schedule(seed=1).specs(index)]
    assert not {spec.seed for specs in first for spec in specs} & {*others}
    seeds = [spec.seed for specs in first for spec in specs]
    assert len(set(seeds)) == len(seeds)
    members = first[0][:2]
    assert members[0].task.seed == members[1].task.seed


def test_processes_play_disjoint_whole_groups() -> None:
    alone = schedule(groups_per_process=4).specs(1)
    parts = [schedule(num_processes=2, process_index=index).specs(1) for index in range(2)]
    assert parts[0] + parts[1] == alone
    assert not {spec.group for spec in parts[0]} & {spec.group for spec in parts[1]}
    assert schedule(num_processes=2).batches_per_epoch == 2 * 2
    assert schedule(rows=rows(7)).batches_per_epoch == 4 * 2


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

    plan = schedule(rows=Million(), groups_per_process=64)
    started = time.process_time()
    plan.specs(0)
    assert time.process_time() - started < 1
    times = []
    for index in range(1, 11):
        started = time.process_time()
        plan.specs(index)
        times.append(time.process_time() - started)
    assert sorted(times)[5] < 0.01  # a permutation for each group would take seconds


def test_a_row_that_is_not_a_mapping_is_named() -> None:
    with pytest.raises(TypeError, match="the row of train-0 must be a mapping, got int: 5"):
        schedule(rows=[5], shuffle=False).specs(0)


def test_an_environment_that_changes_its_row_does_not_change_the_data() -> None:
    data: list[dict[str, int]] = rows(6)
    [spec, *_] = schedule(rows=data, shuffle=False).specs(0)
    changed: Any = spec.task.row
    changed["n"] = 7
    assert data == rows(6)


# Rounds.


def episode_of(spec: EpisodeSpec) -> EpisodeSamples:
    token = 10 + 10 * spec.task.row["n"] + spec.member
    options: dict[str, Any] = {"mask": [1], "sampling_logprobs": [-1.0], "advantages": torch.ones(1)}
    parts = 1 + spec.member  # samples of the episode
    return [Sample(prompt_ids=[1], completion_ids=[token], share=1 / parts, **options) for _ in range(parts)]


def test_a_round_is_saved_and_cut_into_batches(tmp_path: Path) -> None:
    episodes = [episode_of(spec) for spec in schedule().specs(0)]
    made = Round(7, episodes, parts=3, scorer=SCORER)
    made.save(tmp_path / "round.pt")
    again = Round(*Round.read(tmp_path / "round.pt"), parts=3, scorer=SCORER)
    assert again.index == 7
    for one, other in zip(micro_batches_of(made), micro_batches_of(again), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    found = [token for batch in micro_batches_of(made) for token in batch["inputs"]["input_ids"][:, -1].tolist()]
    assert found == [sample.completion_ids[0] for samples in episodes for sample in samples]


def test_the_images_of_a_saved_round_are_images_again(tmp_path: Path) -> None:
    image = picture()
    sample = Sample(
        prompt_ids=[1, 2], completion_ids=[3], mask=[1], sampling_logprobs=[-1.0], images=[ImageSpan(0, 2, image)]
    )
    Round(7, [[sample]], parts=1, scorer=SCORER).save(tmp_path / "round.pt")
    _, [[again]] = Round.read(tmp_path / "round.pt")
    assert again == sample
    assert again.images[0].image.data == image.data


def test_a_round_keeps_little_more_than_the_bytes_of_its_pictures() -> None:
    def measured(count: int) -> tuple[int, int]:
        """Return the memory of a round with so many pictures an episode, and the bytes of the pictures."""
        tracemalloc.start()
        episodes, total = list[EpisodeSamples](), 0
        for number in range(8):
            images = [picture(number * 10 + index, width=64, height=48) for index in range(count)]
            total += sum(len(image.data) for image in images)
            spans = [ImageSpan(20 * index, 12, image) for index, image in enumerate(images)]
            options: dict[str, Any] = {"mask": [1], "sampling_logprobs": [-1.0], "advantages": torch.ones(1)}
            episodes.append([Sample(prompt_ids=[1] * 200, completion_ids=[2], images=spans, **options)])
        made = Round(0, episodes, parts=2, scorer=SCORER)
        assert all(batch["inputs"].keys() == {"input_ids", "attention_mask"} for batch in micro_batches_of(made))
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return used, total

    measured(1)  # what Pillow and PyTorch import and keep
    (used, total), (without, _) = measured(10), measured(0)
    assert total > 700_000
    assert used - without < 1.1 * total


def test_a_round_without_samples_has_batches_that_teach_nothing() -> None:
    batches = Round(0, [], parts=2, scorer=SCORER).batches
    assert [(batch.loss_tokens, batch.sequences) for batch in batches] == [(0, 0), (0, 0)]
    assert [[item["mask"].sum() for item in batch.micro_batches] for batch in batches] == [[0], [0]]


def micro_batches_of(made: Round) -> list[MicroBatch]:
    return [item for batch in made.batches for item in batch.micro_batches]


@pytest.mark.parametrize("streamed", [False, True])
def test_the_environment_learns_the_tasks_of_the_next_round_before_the_model_trains(
    tmp_path: Path, streamed: bool
) -> None:
    happened: list[Any] = []

    class Foresees(Buttons):
        async def aprepare(self, tasks: Sequence[Mapping[str, Any]]) -> None:
            happened.append([task["id"] for task in tasks])

    class Trains(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            happened.append("step")

    rows = datasets.IterableDataset.from_generator(lambda: iter(ROWS)) if streamed else ROWS
    make_trainer(
        tmp_path, environment=Foresees(), rows=rows, callbacks=[Trains()], shuffle_dataset=False, max_steps=2
    ).train()
    ahead = [] if streamed else [[2, 3]]
    assert happened == [[0, 1], *ahead, "step", [2, 3], "step"]
