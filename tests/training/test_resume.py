"""A training that was stopped and resumed equals one that was never stopped, bit for bit."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import TrainerCallback

from gymnast.envs import Episode
from gymnast.trainer import AgentTrainer, GRPOTrainer, RLOOTrainer, RunFolder

from .buttons import ROWS, Buttons, config, model, tokenizer

STEPS = 4


def recording(base: type[AgentTrainer]) -> Any:
    class Records(base):  # type: ignore[misc, valid-type]
        """Notes the episodes that were played at each step."""

        played: list[tuple[int, list[str]]]

        def on_episodes(self, episodes: Any) -> None:
            self.played = [
                *getattr(self, "played", []),
                (self.state.global_step, [f"{episode.spec.group}[{episode.spec.member}]" for episode in episodes]),
            ]
            super().on_episodes(episodes)

    return Records


def trainer_of(
    base: type[AgentTrainer],
    folder: Path,
    *,
    rows: Any = ROWS,
    eval_rows: Any = None,
    callbacks: Any = (),
    **options: Any,
) -> Any:
    fresh: Any = model()
    every_step = {"save_strategy": "steps", "save_steps": 1, "max_steps": STEPS, "log_episodes_steps": 1}
    trainer = recording(base)(
        model=fresh,
        environment=Buttons(),
        args=config(folder, base, **(every_step | options)),
        train_dataset=rows,
        eval_dataset=eval_rows,
        processing_class=tokenizer(),
        callbacks=callbacks,
    )
    for layer in fresh.model.layers:  # set now, because the trainer would warn about it
        layer.self_attn.attention_dropout = 0.1  # so that torch's random state matters too
    return trainer


def state_of(trainer: Any) -> dict[str, torch.Tensor]:
    """Weights and optimiser state, flat."""
    flat = dict(trainer.model.state_dict())
    for index, state in trainer.optimizer.state_dict()["state"].items():
        flat |= {f"{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
    return {name: value.clone() for name, value in flat.items()}


CASES: dict[str, dict[str, Any]] = {
    "a round a step": {},  # 4 tasks, 2 a step: step 3 begins the second epoch
    "two micro-batches a step": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "a round for two steps": {"per_device_train_batch_size": 4, "steps_per_generation": 2},
    "a round used twice": {"num_iterations": 2},
    "a shuffled stream": {
        "rows": datasets.Dataset.from_list(ROWS).to_iterable_dataset().shuffle(seed=3, buffer_size=3)
    },
    "rounds that overlap steps": {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 3,
        "num_generations": 2,
        "rows": ROWS
        * 3,  # an epoch of two rounds, so the second step has the end of one and the beginning of the other
    },
}


@pytest.mark.parametrize(("base", "case"), [*((GRPOTrainer, case) for case in CASES), (RLOOTrainer, "a round a step")])
def test_a_resumed_run_equals_one_that_never_stopped(
    base: type[AgentTrainer],
    case: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    options = CASES[case]
    whole = trainer_of(base, tmp_path, **options)
    before = {name: value.clone() for name, value in whole.model.state_dict().items()}
    whole.train()
    expected = state_of(whole)
    assert not all(torch.equal(expected[name], value) for name, value in before.items())
    assert len({tuple(names) for _, names in whole.played}) == len(whole.played)
    for stopped in (1, 2, 3) if case.startswith("rounds") else (2, 3):
        rest = trainer_of(base, tmp_path / "resumed", save_strategy="no", **options)
        rest.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{stopped}"))
        assert rest.state.global_step == STEPS
        got = state_of(rest)
        assert got.keys() == expected.keys()
        assert not [name for name in got if not torch.equal(got[name], expected[name])], f"stopped at {stopped}"
        # The same tasks, each played once.
        rounds = getattr(rest, "played", [])
        assert rounds == whole.played[len(whole.played) - len(rounds) :]
        assert all(step >= stopped for step, _ in rounds)
    assert [record.message for record in caplog.records if "keys in the checkpoint" in record.message] == []


def test_the_reference_of_a_resumed_training_is_the_first_model(tmp_path: Path) -> None:
    whole = trainer_of(GRPOTrainer, tmp_path, beta=0.1)
    whole.train()
    rest = trainer_of(GRPOTrainer, tmp_path / "resumed", beta=0.1)
    rest.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    kl = [logs["kl"] for logs in whole.state.log_history if "kl" in logs]
    assert [logs["kl"] for logs in rest.state.log_history if "kl" in logs] == kl
    assert kl[-1] > 0


def test_a_reference_that_follows_is_resumed(tmp_path: Path) -> None:
    """The reference is no longer the first model; step 4 scores its round with the reference after steps 2 and 3."""
    options = {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 0.5}
    whole = trainer_of(GRPOTrainer, tmp_path, **options)
    whole.train()
    rest = trainer_of(GRPOTrainer, tmp_path / "resumed", **options)
    rest.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    expected = state_of(whole)
    assert not [name for name, value in state_of(rest).items() if not torch.equal(value, expected[name])]
    pairs = zip(rest.reference.copies, whole.reference.copies, strict=True)
    assert all(torch.equal(got, wanted) for got, wanted in pairs)
    trainer_of(GRPOTrainer, tmp_path / "still", max_steps=1, beta=0.1).train()
    with pytest.raises(ValueError, match=r"checkpoint-1 has no reference\.pt, since sync_ref_model was False there"):
        rest.train(resume_from_checkpoint=str(tmp_path / "still" / "checkpoint-1"))


def test_a_reference_that_followed_is_not_dropped_silently(tmp_path: Path) -> None:
    options = {"beta": 0.1, "max_steps": 1}
    trainer_of(GRPOTrainer, tmp_path, sync_ref_model=True, ref_model_sync_steps=1, **options).train()
    with pytest.raises(ValueError, match=r"checkpoint-1 has a reference\.pt, since sync_ref_model was True there"):
        trainer_of(GRPOTrainer, tmp_path, **options).train(resume_from_checkpoint=True)


class Fails(TrainerCallback):
    """Raises an error in the update of step 2."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 1:
            raise RuntimeError("the update broke")


def test_a_step_whose_update_failed_is_taken_again(tmp_path: Path) -> None:
    """Its batches are the last of round 0, whose samples are in the checkpoint, and the first of round 1."""
    options = CASES["rounds that overlap steps"] | {"max_steps": 2, "logging_steps": 2, "save_steps": 2}
    whole = trainer_of(GRPOTrainer, tmp_path / "whole", **options)
    whole.train()
    with pytest.raises(RuntimeError, match="the update broke"):
        trainer_of(GRPOTrainer, tmp_path, callbacks=[Fails()], **options).train()
    rest = trainer_of(GRPOTrainer, tmp_path, **options)
    rest.train(resume_from_checkpoint=True)
    expected = state_of(whole)
    assert not [name for name, value in state_of(rest).items() if not torch.equal(value, expected[name])]
    [expected_logs], [logs] = ([log for log in run.state.log_history if "loss" in log] for run in (whole, rest))
    for name in ("loss", "episodes/played", "entropy"):
        assert logs[name] == pytest.approx(expected_logs[name]), name


def test_resuming_with_other_tasks_is_refused(tmp_path: Path) -> None:
    trainer_of(GRPOTrainer, tmp_path, max_steps=1).train()
    checkpoint = str(tmp_path / "checkpoint-1")
    with pytest.raises(ValueError, match=r"another training.*num_generations: 4 there, 2 here.*model='.*checkpoint-1'"):
        trainer_of(GRPOTrainer, tmp_path, num_generations=2).train(resume_from_checkpoint=checkpoint)
    trainer = trainer_of(GRPOTrainer, tmp_path)
    trainer.train_dataset = ROWS[:3]
    with pytest.raises(ValueError, match="num_tasks: 4 there, 3 here"):
        trainer.train(resume_from_checkpoint=checkpoint)


def test_a_checkpoint_that_was_cut_off_is_not_used(tmp_path: Path) -> None:
    """A process that is killed while it saves leaves a folder without its last file."""
    trainer_of(GRPOTrainer, tmp_path, max_steps=2).train()
    for half, text in ((3, None), (4, '{"epoch": 1.0, "glob')):
        shutil.copytree(tmp_path / "checkpoint-2", tmp_path / f"checkpoint-{half}")
        state = tmp_path / f"checkpoint-{half}" / "trainer_state.json"
        state.unlink() if text is None else state.write_text(text)
    rest = trainer_of(GRPOTrainer, tmp_path, max_steps=3)
    rest.train(resume_from_checkpoint=True)
    assert [step for step, _ in rest.played] == [2]
    with pytest.raises(ValueError, match="there is no whole checkpoint in"):
        trainer_of(GRPOTrainer, tmp_path / "empty").train(resume_from_checkpoint=True)


def test_a_checkpoint_of_an_earlier_run_is_never_resumed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer_of(GRPOTrainer, tmp_path, max_steps=3).train()
    trainer_of(GRPOTrainer, tmp_path, max_steps=1).train()
    assert sorted(path.name for path in (tmp_path / "checkpoints.1").iterdir()) == [
        "checkpoint-1",
        "checkpoint-2",
        "checkpoint-3",
    ]
    assert "checkpoints.1" in caplog.text
    rest = trainer_of(GRPOTrainer, tmp_path, max_steps=2)
    rest.train(resume_from_checkpoint=True)
    assert [step for step, _ in rest.played] == [1]


def test_resuming_from_an_earlier_checkpoint_moves_later_ones_aside(tmp_path: Path) -> None:
    """So the newest complete checkpoint belongs to this training."""
    trainer_of(GRPOTrainer, tmp_path, max_steps=4).train()
    (tmp_path / "checkpoint-3" / "trainer_state.json").write_text('{"epoch": 1.0, "glob')
    for stop in (2, 3):
        rest = trainer_of(GRPOTrainer, tmp_path, max_steps=stop)
        rest.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1") if stop == 2 else True)
        assert sorted(path.name for path in tmp_path.glob("*/checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
        assert rest.state.global_step == stop
    assert [step for step, _ in rest.played] == [2]


def test_a_checkpoint_that_training_cannot_go_on_from_is_refused(tmp_path: Path) -> None:
    trainer_of(GRPOTrainer, tmp_path, max_steps=1, save_only_model=True).train()
    trainer = trainer_of(GRPOTrainer, tmp_path)
    for folder, advice in {
        "checkpoint-1": "training cannot go on from .*checkpoint-1: .* model='.*checkpoint-1'",
        "checkpoint-7": "there is no checkpoint .*checkpoint-7; in .* there is: checkpoint-1",
    }.items():
        with pytest.raises(ValueError, match=advice):
            trainer.train(resume_from_checkpoint=str(tmp_path / folder))


@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_resuming_a_finished_training_does_nothing(
    strategy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"max_steps": 1, "eval_strategy": strategy, "save_strategy": strategy, "save_steps": 1, "eval_steps": 1}
    whole = trainer_of(GRPOTrainer, tmp_path, eval_rows=ROWS[:1], callbacks=[RunFolder(tmp_path)], **options)
    whole.train()
    before = state_of(whole)
    records = {path.name: path.read_bytes() for path in tmp_path.glob("*.jsonl")}
    assert records.keys() == {"metrics.jsonl", "episodes.jsonl", "learning.jsonl", "evaluations.jsonl"}
    [checkpoint] = tmp_path.glob("checkpoint-*")
    saved = (checkpoint / "trainer_state.json").stat().st_mtime_ns
    options["eval_on_start"] = True
    again = trainer_of(GRPOTrainer, tmp_path, eval_rows=ROWS[:1], callbacks=[RunFolder(tmp_path)], **options)
    for _ in range(2):
        assert again.train(resume_from_checkpoint=True).global_step == 1
        assert not hasattr(again, "played")
        assert all(torch.equal(value, before[name]) for name, value in again.model.state_dict().items())
    assert "the checkpoint is of step 1 and max_steps is 1: there is nothing left to train" in caplog.text
    assert (checkpoint / "trainer_state.json").stat().st_mtime_ns == saved
    assert len([logs for logs in again.state.log_history if "eval_reward" in logs]) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.jsonl")} == records
    assert [*tmp_path.glob("checkpoint*")] == [checkpoint]


def test_the_record_of_a_resumed_training_has_each_episode_once(tmp_path: Path) -> None:
    whole = trainer_of(GRPOTrainer, tmp_path)
    whole.train()
    text = (tmp_path / "episodes.jsonl").read_text()
    trainer_of(GRPOTrainer, tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    again = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    first = [json.loads(line) for line in text.splitlines()]
    assert [line["step"] for line in again] == [step for step in range(STEPS) for _ in range(8)]
    learned = [json.loads(line) for line in (tmp_path / "learning.jsonl").read_text().splitlines()]
    votes = [(line["step"], line["group"], line["member"]) for line in learned if "vote" in line]
    assert len(votes) == len({*votes}) == len(again)
    for one, other in zip(first, again, strict=True):
        episodes = [Episode.from_json(json.dumps(line["episode"])) for line in (one, other)]
        traces = [trace for episode in episodes for trace in episode.traces]
        assert (traces[0].ids, traces[0].mask) == (traces[1].ids, traces[1].mask)
        # Timing decides which requests are decoded together, and rounding depends on that.
        assert traces[0].logprobs == pytest.approx(traces[1].logprobs, abs=1e-5)
