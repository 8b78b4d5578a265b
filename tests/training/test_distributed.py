"""Two processes on the CPU train as one, with whole weights and with sharded ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from gymnast.envs import ConfigurationError
from gymnast.trainer import GRPOTrainer, whole_weights

from . import gallery
from .buttons import (
    ROWS,
    Buttons,
    ScriptedGenerator,
    ShiftedGenerator,
    adapted,
    config,
    forget,
    make_trainer,
    model,
    untied,
)
from .launching import alone, run_two
from .test_step_gradient import CASES as STEPS
from .test_step_gradient import EPISODES, assert_equal, step_gradient

PROGRAM = """
import gc, json, os, sys
from pathlib import Path
import torch
from buttons import Buttons, config, model, tokenizer, ROWS
from gymnast.envs import Episode
from gymnast.trainer import GRPOTrainer

folder = Path(sys.argv[1])
rank = int(os.environ["RANK"])
gc.freeze()  # each training asks for whole garbage collections


class Records(GRPOTrainer):
    played, counts = [], []

    def on_episodes(self, episodes):
        self.played.append([f"{episode.spec.group}[{episode.spec.member}]" for episode in episodes])
        super().on_episodes(episodes)

    def compute_loss(self, model, inputs, *args, num_items_in_batch=None, **kwargs):
        self.counts.append((float(inputs["mask"].sum()), float(num_items_in_batch)))
        return super().compute_loss(model, inputs, *args, num_items_in_batch=num_items_in_batch, **kwargs)


def train_whole(folder, checkpoint=None):
    Records.played, Records.counts = [], []
    folder.mkdir(exist_ok=True)
    trainer = Records(
        model=model(),
        environment=Buttons(),
        args=config(
            folder, max_steps=2, per_device_train_batch_size=4, ddp_backend="gloo", save_strategy="steps", save_steps=1,
            scale_rewards="batch", log_episodes_steps=1, beta=0.1, sync_ref_model=True, ref_model_sync_steps=1,
        ),
        train_dataset=ROWS,
        eval_dataset=[*ROWS, dict(good="neither", id=9)],
        processing_class=tokenizer(),
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    metrics = trainer.evaluate()
    report = {
        "played": trainer.played,
        "counts": trainer.counts,
        "logs": [logs for logs in trainer.state.log_history if "loss" in logs],
        "eval": metrics,
        "files": sorted(path.name for path in folder.iterdir()),
    }
    (folder / f"report-{rank}.json").write_text(json.dumps(report))
    torch.save(trainer.model.state_dict(), folder / f"weights-{rank}.pt")


train_whole(folder)
train_whole(folder / "again", str(folder / "checkpoint-1"))
"""

REFILLS = """
import datasets
from datasets.distributed import split_dataset_by_node
from buttons import ScriptedGenerator, call_ids

groups = []
rows = [dict(good=good) for good in ("left", "neither", "neither", "neither", "neither", "left", "left")]
stream = datasets.Dataset.from_list(rows).to_iterable_dataset()


class Groups(GRPOTrainer):
    def on_episodes(self, episodes):
        groups.append(list(dict.fromkeys(episode.spec.group for episode in episodes)))


trainer = Groups(
    model=model(),
    environment=Buttons(),
    args=config(
        folder / "refilled", per_device_train_batch_size=4, ddp_backend="gloo", max_refills=3, max_steps=2,
    ),
    train_dataset=stream,
    processing_class=tokenizer(),
    generator=ScriptedGenerator(lambda request: call_ids("left" if request.seed % 2 else "right")),
)
trainer.train()
logs = [logs["groups/refilled"] for logs in trainer.state.log_history if "loss" in logs]
weights = sum(weight.double().sum().item() for weight in trainer.model.state_dict().values())
trainer.train_dataset = split_dataset_by_node(stream, rank, 2)
try:
    trainer.train()
except ValueError as error:
    (folder / f"refilled-{rank}.json").write_text(json.dumps([groups, logs, weights, str(error)]))
"""

GRADIENTS = """
from buttons import AddsTerm, Gradients, sometimes_failing
from gymnast.trainer import RLOOTrainer

steps, looks = {}, {}
for case in json.loads(sys.argv[3]):
    kept = Gradients()
    trainer_class = {"rloo": RLOOTrainer, "with a term": AddsTerm}.get(case, GRPOTrainer)
    options = dict(scale_rewards="none", beta=0.0, max_grad_norm=0.0, ddp_backend="gloo")
    options["loss_type"] = case if case in ("grpo", "dr_grpo", "dapo", "rloo") else "dapo"
    agent = model()
    if case == "with an unused weight":
        options |= dict(max_steps=2, ddp_find_unused_parameters=True)  # DDP misses a gradient in the next step
        agent.model.tower = torch.nn.Linear(2, 2)
    trainer = trainer_class(
        model=agent,
        environment=Buttons(),
        args=config(
            folder / "gradients",
            trainer_class,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=4,
            max_tokens_per_batch=50,  # each process cuts its batches into another number of micro-batches
            **options,
        ),
        train_dataset=ROWS,
        processing_class=tokenizer(),
        callbacks=[kept],
        generator=sometimes_failing(),
    )
    trainer.train()
    steps[case] = kept.steps[0]
    looks[case] = trainer.model_wrapped.find_unused_parameters
torch.save([steps, looks], folder / f"gradients-{rank}.pt")
"""

SHARDED = """
import threading
from accelerate.state import AcceleratorState, PartialState
from buttons import SHARDED, CopyGenerator, adapted, untied
from gymnast.trainer import RolloutError, whole_weights


class WhoLoads(CopyGenerator):
    def load_weights(self, model, version):
        loads.append((version, threading.current_thread() is threading.main_thread()))
        super().load_weights(model, version)


def train(name, agent, checkpoint=None, reward=(), **options):
    AcceleratorState._reset_state()
    options = dict(max_steps=2, save_strategy="steps") | options
    args = config(
        folder / name, per_device_train_batch_size=4, ddp_backend="gloo", save_steps=1, scale_rewards="batch",
        beta=0.1, sync_ref_model=True, ref_model_sync_steps=1, **SHARDED, **options,
    )
    data = dict(environment=Buttons(), train_dataset=ROWS, processing_class=tokenizer(), reward_funcs=reward)
    copied = untied() if name == "untied" else model()
    loads.clear()
    trainer = GRPOTrainer(model=agent, args=args, generator=WhoLoads(copied), **data)
    trainer.train(resume_from_checkpoint=checkpoint)
    assert type(trainer.model).__name__.startswith("FSDP")
    weights = dict(whole_weights(trainer.model))
    if rank == 0:
        torch.save([trainer.state.log_history, weights], folder / f"{name}.pt")


loads = []
train("sharded", model())
train("overlapped", model(), max_staleness=1, save_strategy="no")
(folder / f"loads-{rank}.json").write_text(json.dumps(loads))
# Micro-batches of one or two rows: the processes do not have the same number of them.
train("untied", untied(), max_tokens_per_batch=100)
train("adapted", adapted())
train("resumed", model(), checkpoint=str(folder / "sharded" / "checkpoint-1"))


def judge(completions):
    if rank == 1:
        raise RuntimeError("the judge of this process is gone")
    return [0.0] * len(completions)


try:
    train("half", model(), reward=judge, max_steps=20, max_failure_rate=0.4, save_strategy="no")
except RolloutError as error:
    (folder / f"half-{rank}.txt").write_text(str(error))
"""

PICTURES = """
import gallery
from accelerate.state import AcceleratorState

for name, options in (("copied", dict(gradient_checkpointing=True)), ("sharded", gallery.SHARDED)):
    AcceleratorState._reset_state()
    options = dict(per_device_train_batch_size=4, ddp_backend="gloo") | options
    found = gallery.gradients(folder / "pictures", config, ScriptedGenerator(gallery.babble), **options)
    torch.save(found, folder / f"pictures-{name}-{rank}.pt")
"""

CASES: dict[str, dict[str, Any]] = {
    "whitened rewards and tokens of high entropy": {"advantage_estimator": "reinforce++", "top_entropy_quantile": 0.4},
    "several samples an episode": {"advantage_estimator": "max_rl", "loss_type": "grpo", "forgets": True},
    "a divergence in the reward and a mismatch": {
        **{"beta": 0.1, "kl_in": "reward", "shifts": True},
        **{"correction": "geometric_mask", "correction_min": 0.5, "correction_max": 2.0},
    },
}
"""Options of trainings that are run in one process and in two; with `forgets`, each turn begins a sample.

With `shifts` the generator reports wrong log-probabilities.
"""

MANY = """
import asyncio, logging
from buttons import ShiftedGenerator, forget
from transformers import TrainerCallback


def breaks_here():
    return rank == 1 and trainer.state.global_step == 1


def reward(completions):
    if breaks_here():
        raise RuntimeError("the judge is gone")
    return [1.0] * len(completions)


class Breaks(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if breaks_here():
            raise RuntimeError("the disk is full")


def huge(completions):
    if breaks_here():
        return [3e38 * (index % 2) for index in range(len(completions))]
    return [float(index % 2) for index in range(len(completions))]


WAITS = ["training waits for the other processes", "4 episodes wait in reset"]  # said by each process


def negative(completions):
    return [-1.0 - rank] * len(completions)


class Told(logging.Handler):
    def emit(self, record):
        if record.getMessage().endswith(f"{WAITS[rank]}"):
            (folder / f"told-{rank}.txt").write_text(record.getMessage())


class Hangs(Buttons):
    async def areset(self, **options):
        while rank == 1 and trainer and not all((folder / f"told-{peer}.txt").exists() for peer in (0, 1)):
            await asyncio.sleep(0.01)
        return await super().areset(**options)


def trainer_of(name, environment=Buttons, reward_funcs=(), callbacks=(), forgets=False, shifts=False, **options):
    agent = model()
    usual = dict(max_steps=3, per_device_train_batch_size=4, ddp_backend="gloo", on_failure="raise")
    return GRPOTrainer(
        model=agent,
        environment=environment(),
        args=config(folder / name, **(usual | options)),
        generator=ShiftedGenerator(agent) if shifts else None,
        compact=forget if forgets else None,
        train_dataset=ROWS,
        processing_class=tokenizer(),
        reward_funcs=reward_funcs,
        callbacks=callbacks,
    )


logging.getLogger("gymnast.trainer.loop.watchdog").addHandler(Told())
trainer = None
trainer = trainer_of("hangs", environment=Hangs, stall_warning=0.5)
trainer.train()
trainer = trainer_of("nonfinite", reward_funcs=huge, scale_rewards="none", loss_type="grpo")
trainer.train()
steps = [logs["steps/nonfinite"] for logs in trainer.state.log_history if "loss" in logs]
weights = [float(weight.double().sum()) for weight in trainer.model.parameters()]
(folder / f"nonfinite-{rank}.json").write_text(json.dumps([steps, weights]))
for name, options in json.loads(sys.argv[2]).items():
    trainer = trainer_of(name, max_steps=2, **options)
    trainer.train()
    torch.save(trainer.model.state_dict(), folder / f"{name}-{rank}.pt")
    (folder / f"{name}-{rank}.json").write_text(json.dumps(trainer.state.log_history[:2]))
for name, options in (
    ("negative", dict(reward_funcs=negative, advantage_estimator="max_rl")), ("together", dict(reward_funcs=reward))
):
    trainer = trainer_of(name, **options)
    try:
        trainer.train()
    except Exception as error:
        (folder / f"{name}-{rank}.txt").write_text(f"{type(error).__name__}: {error}")
"""

ALONE = """
from accelerate.utils import DistributedType

# No FSDP any more.
os.environ["ACCELERATE_USE_FSDP"] = "false"
AcceleratorState._reset_state()
PartialState().distributed_type = DistributedType.MULTI_CPU
trainer = trainer_of("alone", callbacks=[Breaks()])
trainer.train()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder and the reports of one pair of processes, whose end is an error of the second: a start is slow."""
    folder = tmp_path_factory.mktemp("two")
    program = PROGRAM + REFILLS + MANY + GRADIENTS + PICTURES + SHARDED + ALONE
    (first, said), (second, error) = run_two(
        folder, program, json.dumps(CASES), json.dumps([*STEPS, "with an unused weight"]), timeout=290
    )
    assert "RuntimeError: the disk is full" in error, f"process 0 said: {said}\nprocess 1 said: {error}"
    assert (bool(first), second) == (True, 1)  # torch may end process 0 by a signal, as its peer is gone
    return folder, [json.loads((folder / f"report-{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Any]:
    """Trains one process with twice the batch, once for each kind of model."""

    return cache(lambda make_agent: alone(tmp_path_factory.mktemp("one"), make_agent(), 2))


def test_each_process_plays_whole_groups(run: Any) -> None:
    _, (first, second) = run
    for step in range(2):
        groups = [{name.partition("[")[0] for name in report["played"][step]} for report in (first, second)]
        assert len(groups[0]) == len(groups[1]) == 1
        assert not groups[0] & groups[1]
        assert len(first["played"][step]) == len(second["played"][step]) == 4
    everything = [name for report in (first, second) for names in report["played"] for name in names]
    assert len(set(everything)) == 16  # every task of the epoch, every member once


def test_both_processes_have_the_same_weights(run: Any) -> None:
    folder, _ = run
    one, other = (torch.load(folder / f"weights-{rank}.pt", weights_only=True) for rank in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_two_processes_train_like_one_with_twice_the_batch(run: Any, single: Any) -> None:
    """The loss is normalised, and the advantages are scaled, over both processes."""
    folder, (first, _) = run
    trained = single(model)
    pair = torch.load(folder / "weights-0.pt", weights_only=True)
    for name, value in trained.model.state_dict().items():
        torch.testing.assert_close(pair[name], value, rtol=1e-3, atol=1e-4)
    logs = [log for log in trained.state.log_history if "loss" in log]
    for one, both in zip(logs, first["logs"], strict=True):
        for name in ("reward", "grad_norm", "turns/mean", "completions/mean_length", "kl", "stop/final_answer"):
            assert both[name] == pytest.approx(one[name], rel=1e-3, abs=1e-4), name
        for name in ("episodes/played", "tokens/sampled", "tools/calls", "tokens/drift"):
            assert both[name] == one[name], name


def test_loss_tokens_are_counted_over_both_processes(run: Any) -> None:
    _, (first, second) = run
    for (own, total), (others, same) in zip(first["counts"], second["counts"], strict=True):
        assert total == same == own + others


def test_evaluation_is_shared(run: Any, tmp_path: Path) -> None:
    """Two processes play five tasks, each task once, and both know the mean over all."""
    folder, (first, second) = run
    timeless = [name for name in first["eval"] if "time" not in name and "seconds" not in name]
    assert {name: first["eval"][name] for name in timeless} == {name: second["eval"][name] for name in timeless}
    assert first["eval"]["eval_episodes/played"] == 20
    one = make_trainer(tmp_path, eval_rows=[*ROWS, {"good": "neither", "id": 9}])
    assert one.model is not None
    one.model.load_state_dict(torch.load(folder / "weights-0.pt", weights_only=True))
    assert first["eval"]["eval_reward"] == pytest.approx(one.evaluate()["eval_reward"])


def test_the_first_process_writes_the_checkpoint(run: Any) -> None:
    folder, (first, _) = run
    assert {"checkpoint-1", "checkpoint-2", "episodes-0.jsonl", "episodes-1.jsonl"} <= set(first["files"])
    saved = load_file(folder / "checkpoint-2" / "model.safetensors")
    weights = torch.load(folder / "weights-0.pt", weights_only=True)
    assert all(torch.equal(value, weights[name]) for name, value in saved.items())


def test_two_processes_resume(run: Any) -> None:
    folder, before = run
    for rank in range(2):
        report = json.loads((folder / "again" / f"report-{rank}.json").read_text())
        assert report["played"] == before[rank]["played"][1:]
        expected = torch.load(folder / f"weights-{rank}.pt", weights_only=True)
        got = torch.load(folder / "again" / f"weights-{rank}.pt", weights_only=True)
        assert all(torch.equal(got[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("name", "agent"), [("sharded", model), ("untied", untied), ("adapted", adapted)])
def test_sharded_weights_train_like_whole_ones(run: Any, single: Any, name: str, agent: Any) -> None:
    folder, _ = run
    trained = single(agent)
    logs, weights = torch.load(folder / f"{name}.pt", weights_only=True)
    expected = dict(whole_weights(trained.model))
    assert weights.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(weights[key], value, rtol=1e-3, atol=1e-4)
    for one, both in zip(trained.state.log_history[:2], logs[:2], strict=True):
        for metric in ("loss", "grad_norm", "kl", "reward", "tokens/sampled"):
            assert both[metric] == pytest.approx(one[metric], rel=1e-4, abs=1e-5), metric
    assert sum(log.get("episodes/failed", 0) + log.get("tokens/drift", 0) for log in logs) == 0


def test_a_sharded_training_is_saved_and_resumed(run: Any) -> None:
    folder, _ = run
    _, weights = torch.load(folder / "sharded.pt", weights_only=True)
    saved = load_file(folder / "sharded" / "checkpoint-2" / "model.safetensors")
    assert all(torch.equal(value, saved[key]) for key, value in weights.items())
    assert (folder / "sharded" / "checkpoint-2" / "reference-1.pt").is_file()  # each process keeps its part
    logs, resumed = torch.load(folder / "resumed.pt", weights_only=True)
    assert [log["step"] for log in logs if "loss" in log] == [1, 2]
    assert all(torch.equal(value, weights[key]) for key, value in resumed.items())


def test_overlap_gathers_sharded_weights_once_a_step_and_in_the_main_thread(run: Any) -> None:
    """In another thread the processes could gather while others compute gradients, and wait for each other for ever."""
    folder, _ = run
    assert [json.loads((folder / f"loads-{rank}.json").read_text()) for rank in (0, 1)] == [[[0, True], [1, True]]] * 2


def test_a_process_without_a_group_takes_part_and_failures_count_in_all(run: Any) -> None:
    """In one of the two processes every episode fails. Both train, until the share over both is too large."""
    folder, _ = run
    for rank in (0, 1):
        message = (folder / f"half-{rank}.txt").read_text()
        assert "40 of 80 episodes of the last 10 rounds failed, more than max_failure_rate=0.4 allows" in message
    assert [path.name for path in (folder / "half").glob("checkpoint-*")] == ["checkpoint-9"]  # of the new weights


def test_a_generator_with_sharded_weights_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    args = config(tmp_path, fsdp=True)
    with pytest.raises(ConfigurationError, match=r"would gather .* use generator='vllm-server'"):
        GRPOTrainer("no such model", args=args, environment=Buttons(), train_dataset=ROWS)


def test_two_processes_refill_their_own_groups(run: Any) -> None:
    """Of the first round, process 0 has spread at once and process 1 at its second refill: places 1, 3, 5."""
    folder, _ = run
    reports = [json.loads((folder / f"refilled-{rank}.json").read_text()) for rank in range(2)]
    (first, logs, weights, error), (second, same_logs, same_weights, same_error) = reports
    assert first[0] == ["train-0@0"]
    assert second[0] == ["train-1@0", "train-3@0/refill-0", "train-5@0/refill-0"]
    assert logs == same_logs
    assert logs[0] == 2
    assert weights == same_weights
    assert error == same_error
    assert "the processes read different rows from train_dataset" in error  # each had a part of the stream


@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_like_one_with(case: str, run: Any, tmp_path: Path) -> None:
    folder, _ = run
    options = {**CASES[case]}
    compact = forget if options.pop("forgets", False) else None
    agent = model()
    generator = ShiftedGenerator(agent) if options.pop("shifts", False) else None
    parts: Any = {"agent": agent, "generator": generator, "compact": compact}
    single: Any = make_trainer(tmp_path, max_steps=2, per_device_train_batch_size=8, **parts, **options)
    single.train()
    before = model().state_dict()
    pair = torch.load(folder / f"{case}-0.pt", weights_only=True)
    for name, value in single.model.state_dict().items():
        torch.testing.assert_close(pair[name], value, rtol=1e-3, atol=1e-4)
    assert not all(torch.equal(value, before[name]) for name, value in pair.items())
    logs = json.loads((folder / f"{case}-0.json").read_text())
    for both, one in zip(logs, single.state.log_history[:2], strict=True):
        assert both.keys() == one.keys()
        for name in (item for item in one if "time" not in item and "seconds" not in item):
            assert both[name] == pytest.approx(one[name], rel=1e-3, abs=1e-4), name
    samples = [logs["samples/mean"] for logs in single.state.log_history if "loss" in logs]
    assert (min(samples) > 1) == (compact is not None)


def test_trouble_in_one_process_concerns_both(run: Any) -> None:
    """An error while a round is played ends both. For any other error no process may wait to save."""
    folder, _ = run
    assert "another training process failed; see its error" in (folder / "together-0.txt").read_text()
    assert (folder / "together-1.txt").read_text().startswith("EpisodeFailedError")
    assert "the judge is gone" in (folder / "together-1.txt").read_text()
    assert [path.name for path in (folder / "together").glob("checkpoint-*")] == ["checkpoint-1"]
    # A reward that the estimator cannot take: both name it.
    for rank in range(2):
        assert "divides by the mean reward" in (folder / f"negative-{rank}.txt").read_text()
    # A hang in one process: both say what they wait for.
    for rank, told in enumerate(("training waits for the other processes", "4 episodes wait in reset")):
        assert (folder / f"told-{rank}.txt").read_text().startswith(f"nothing has moved in process {rank} for ")
        assert (folder / f"told-{rank}.txt").read_text().endswith(f" s: {told}")
    # A gradient that is not finite: both skip the same step, and it is counted once.
    steps, weights = json.loads((folder / "nonfinite-0.json").read_text())
    assert steps == [0, 1, 0]
    assert json.loads((folder / "nonfinite-1.json").read_text())[1] == weights
    assert not list((folder / "alone").glob("checkpoint-*"))


@pytest.mark.parametrize("case", STEPS)
def test_the_gradient_of_a_step_in_two_processes_is_that_of_one(case: str, run: Any, tmp_path: Path) -> None:
    folder, _ = run
    gradients, _ = torch.load(folder / "gradients-1.pt", weights_only=True)
    assert_equal(gradients[case], step_gradient(tmp_path, case, EPISODES))


@pytest.mark.parametrize("name", ["copied", "sharded"])
def test_processes_with_and_without_pictures_have_the_gradient_of_one(name: str, run: Any, tmp_path: Path) -> None:
    folder, _ = run
    expected = gallery.gradients(tmp_path, config, ScriptedGenerator(gallery.babble))
    for rank in (0, 1):
        pair = torch.load(folder / f"pictures-{name}-{rank}.pt", weights_only=True)
        for got, gradient in zip(pair, expected, strict=True):
            assert_equal(got, gradient)
    assert [any(step[key].any() for key in step if "visual" in key) for step in expected] == [True, False]


def test_ddp_looks_for_weights_without_a_gradient_only_if_told_to(run: Any) -> None:
    folder, _ = run
    gradients, looks = torch.load(folder / "gradients-1.pt", weights_only=True)
    [case] = [case for case, look in looks.items() if look]
    assert case == "with an unused weight"
    assert_equal({name: gradients[case][name] for name in gradients["dapo"]}, gradients["dapo"])
