"""Two processes that DeepSpeed shards train as one: ZeRO-2 and ZeRO-3, on the CPU.

DeepSpeed is installed in a folder of its own (`make .deepspeed/.stamp`): accelerate imports it in every process that
finds it, which takes seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from gymnast.trainer import whole_weights
from gymnast.trainer.models.named_weights import named_weights

from ..training import gallery
from ..training.buttons import Disturbed, ScriptedGenerator, adapted, config, experts, make_trainer, model, untied
from ..training.launching import alone, deepspeed_variables, for_deepspeed, launch
from ..training.test_step_gradient import assert_equal

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, os, sys
from pathlib import Path
import deepspeed
import torch
from accelerate.state import AcceleratorState
import gallery
from buttons import ROWS, Buttons, CopyGenerator, Disturbed, ScriptedGenerator
from buttons import adapted, config, experts, model, tokenizer, untied, zero
from gymnast.trainer import GRPOTrainer, whole_weights

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled; gloo does as well
folder, rank, files = Path(sys.argv[1]), int(os.environ["RANK"]), json.loads(sys.argv[2])
SHARED = dict(scale_rewards="batch", beta=0.1, sync_ref_model=True, ref_model_sync_steps=1)


def make(name, agent, copied=None, reward=(), callbacks=(), **options):
    AcceleratorState._reset_state()
    usual = dict(max_steps=2, save_strategy="steps", save_steps=1, per_device_train_batch_size=4, ddp_backend="gloo")
    return GRPOTrainer(
        model=agent,
        args=config(folder / name, **(usual | options)),
        environment=Buttons(),
        train_dataset=ROWS,
        processing_class=tokenizer(),
        reward_funcs=reward,
        callbacks=callbacks,
        generator=copied and CopyGenerator(copied),
    )


def train(name, *args, checkpoint=None, **options):
    trainer = make(name, *args, **(SHARED | options))
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    weights = dict(whole_weights(trainer.model))
    if rank == 0:
        torch.save([trainer.state.log_history, weights], folder / f"{name}.pt")
    return trainer


def launched(file):
    for variable in files["zero2"].keys() | files["zero3"].keys():
        os.environ.pop(variable, None)
    os.environ.update(files.get(file, {}))


# With the files of examples/accelerate.
launched("zero2")
train("zero2", model())  # the model samples with its own weights
trainer = train("resumed2", model(), checkpoint=folder / "zero2" / "checkpoint-1")
errors = {}
try:
    trainer.train()
except RuntimeError as error:
    errors["again"] = str(error)
launched("zero3")
base = str(folder / "base")
train("zero3", base, model(), gradient_checkpointing=True).save_model(str(folder / "saved"))
checkpoint = folder / "zero3" / "checkpoint-1"
train("resumed3", base, model(), checkpoint=checkpoint, gradient_checkpointing=True)
train("bf16", base, model(), bf16=True, max_steps=1)

# With options. No weight stays whole for long, and from the second step on some are gathered before they are needed.
# The processes do not have the same micro-batches.
launched(None)
tight = zero(3, stage3_param_persistence_threshold=0, stage3_max_reuse_distance=0, stage3_prefetch_bucket_size=3000)
train("untied", untied(), untied(), deepspeed=tight, max_steps=4, max_tokens_per_batch=100)
train("adapted", adapted(), deepspeed=zero(2))
train("experts", experts(), experts(), deepspeed=zero(3), max_steps=1, learning_rate=0.0, save_strategy="no")
for stage in (2, 3):
    disturbed = Disturbed(nan_here=rank == 1)
    options = dict(deepspeed=zero(stage), save_strategy="no", **Disturbed.OPTIONS)
    make(f"disturbed{stage}", model(), model(), disturbed.reward, [disturbed], **options).train()
    torch.save(disturbed.weights, folder / f"disturbed{stage}-{rank}.pt")

for stage in (2, 3):
    AcceleratorState._reset_state()
    options = dict(per_device_train_batch_size=4, ddp_backend="gloo", deepspeed=zero(stage))
    babbling, agent = ScriptedGenerator(gallery.babble), str(folder / "seeing")
    found = gallery.gradients(folder / "pictures", config, babbling, agent, **options)
    torch.save(found, folder / f"pictures{stage}-{rank}.pt")

# Each of these is an error before the model is loaded, but for the last one.
for name, agent, wrong, others in (
    ("stage", "no such model", zero(1), {}),
    ("generator", "no such model", zero(3), {}),
    ("optimizer", "no such model", zero(2) | {"optimizer": {"type": "AdamW"}}, {}),
    ("fp16", "no such model", zero(2) | {"fp16": {"enabled": "auto"}}, dict(fp16=True)),
    ("precision", "no such model", zero(2) | {"bf16": {"enabled": True}}, {}),
    ("overflow", "no such model", zero(2) | {"bf16": {"enabled": True, "check_grad_overflow": False}}, dict(bf16=True)),
    ("nvme", "no such model", zero(3, offload_param={"device": "nvme"}), {}),
    ("quantised", "no such model", zero(3, zero_quantized_weights=True), {}),
    ("staleness", "no such model", zero(2), dict(max_staleness=1)),
    ("adapter", adapted(), zero(3), dict(copied=model())),
):
    try:
        make("refused", agent, deepspeed=wrong, **others)
    except Exception as error:
        errors[name] = f"{type(error).__name__}: {error}"
(folder / f"report-{rank}.json").write_text(json.dumps(errors))
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    variables = for_deepspeed()
    files = {
        f"zero{stage}": deepspeed_variables(ROOT / "examples" / "accelerate" / f"zero{stage}.yaml") for stage in (2, 3)
    }
    folder = tmp_path_factory.mktemp("two")
    model().save_pretrained(folder / "base")
    for part in gallery.seeing():
        part.save_pretrained(folder / "seeing")
    errors, others = launch(folder, PROGRAM, json.dumps(files), variables=variables)
    assert errors == others
    return folder, errors


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Any]:
    """Trains one process with twice the batch, once for each kind of model."""

    @cache
    def train(make_agent: Any, steps: int = 2) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
        trainer = alone(tmp_path_factory.mktemp("one"), make_agent(), steps)
        return trainer.state.log_history, dict(whole_weights(trainer.model))  # type: ignore[arg-type]

    return train


@pytest.mark.parametrize(
    ("name", "agent", "steps"),
    [("zero2", model, 2), ("zero3", model, 2), ("untied", untied, 4), ("adapted", adapted, 2)],
)
def test_sharded_processes_train_like_one_with_twice_the_batch(
    run: Any, single: Any, name: str, agent: Any, steps: int
) -> None:
    folder, _ = run
    logs, weights = torch.load(folder / f"{name}.pt", weights_only=True)
    expected_logs, expected = single(agent, steps)
    assert weights.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(weights[key], value, rtol=1e-3, atol=1e-4)
    for one, both in zip(expected_logs[:steps], logs[:steps], strict=True):
        for metric in ("loss", "grad_norm", "kl", "reward", "tokens/sampled"):
            assert both[metric] == pytest.approx(one[metric], rel=1e-4, abs=1e-5), metric
    assert sum(log.get("episodes/failed", 0) + log.get("tokens/drift", 0) for log in logs) == 0


@pytest.mark.parametrize("stage", [2, 3])
def test_a_training_is_saved_and_resumed(run: Any, stage: int) -> None:
    folder, _ = run
    _, weights = torch.load(folder / f"zero{stage}.pt", weights_only=True)
    checkpoint = folder / f"zero{stage}" / "checkpoint-2"
    saved = [load_file(checkpoint / "model.safetensors")] + [load_file(folder / "saved" / "model.safetensors")] * (
        stage == 3
    )
    assert all(torch.equal(value, item[key]) for item in saved for key, value in weights.items())
    references = {path.name for path in checkpoint.glob("reference*")}
    assert references == ({"reference.pt"} if stage == 2 else {"reference-0.pt", "reference-1.pt"})
    logs, resumed = torch.load(folder / f"resumed{stage}.pt", weights_only=True)
    assert [log["step"] for log in logs if "loss" in log] == [1, 2]
    assert all(torch.equal(value, weights[key]) for key, value in resumed.items())


def test_weights_that_checkpoints_have_in_parts_are_gathered_one_by_one(run: Any) -> None:
    folder, _ = run
    _, weights = torch.load(folder / "experts.pt", weights_only=True)
    expected = named_weights(experts())
    assert any(".experts.1." in name for name in expected)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(value, weights[name]) for name, value in expected.items())


def test_bfloat16_is_near(run: Any, single: Any) -> None:
    folder, _ = run
    [logs, *_], weights = torch.load(folder / "bf16.pt", weights_only=True)
    [expected, *_], _ = single(model)
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert logs["loss"] == pytest.approx(expected["loss"], rel=0.02)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_step_that_must_not_change_the_weights_does_not(run: Any, stage: int, tmp_path: Path) -> None:
    """A round without any group, and a gradient that is not finite in one process, are as in a single process."""
    folder, _ = run
    disturbed = Disturbed()
    options: dict[str, Any] = Disturbed.OPTIONS | {"per_device_train_batch_size": 8}
    make_trainer(tmp_path, reward_funcs=disturbed.reward, callbacks=[disturbed], **options).train()
    pair = [torch.load(folder / f"disturbed{stage}-{rank}.pt", weights_only=True) for rank in (0, 1)]
    for one, *both in zip(disturbed.weights, *pair, strict=True):
        for weights in both:
            torch.testing.assert_close(weights, one, rtol=1e-3, atol=1e-4)
    steps = pair[0]
    assert [any(not torch.equal(new[key], old[key]) for key in new) for old, new in pairwise(steps)] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("stage", [2, 3])
def test_processes_with_and_without_pictures_have_the_gradient_of_one(run: Any, stage: int, tmp_path: Path) -> None:
    folder, _ = run
    expected = gallery.gradients(tmp_path, config, ScriptedGenerator(gallery.babble))
    for rank in (0, 1):
        pair = torch.load(folder / f"pictures{stage}-{rank}.pt", weights_only=True)
        for got, gradient in zip(pair, expected, strict=True):
            assert_equal(got, gradient)


MESSAGES = {
    "again": "DeepSpeed trains once",
    "stage": "stage must be 2 .* or 3 .* got 1",
    "generator": "use generator='vllm-server'",
    "optimizer": "optimizer=.* give optim, learning_rate",
    "fp16": "use bf16",
    "precision": "set bf16=True",
    "overflow": "check_grad_overflow must be true",
    "nvme": "use 'cpu'",
    "quantised": "zero_quantized_weights=True cannot work here",
    "staleness": "max_staleness=1 does not work with DeepSpeed",
    "adapter": "ZeRO-3 does not work with an adapter",
}


@pytest.mark.parametrize("case", MESSAGES)
def test_configurations_that_cannot_work_are_refused(run: Any, case: str) -> None:
    _, errors = run
    assert re.search(MESSAGES[case], errors[case])
    assert case == "again" or errors[case].startswith("ConfigurationError")
