"""Private methods of transformers that gymnast overrides still have the expected signatures."""

from __future__ import annotations

import inspect

import pytest
from transformers import Trainer

from gymnast.trainer.loop.transformers_hooks import HookedTrainer

SIGNATURES = {
    "_track_num_input_tokens": ["self", "inputs"],
    "_get_grad_norm": ["self", "model", "grad_norm"],
    "_save_rng_state": ["self", "output_dir"],
    "_load_from_checkpoint": ["self", "resume_from_checkpoint", "model"],
    "_load_optimizer_and_scheduler": ["self", "checkpoint"],
    "_issue_warnings_after_load": ["self", "load_result"],
    "_save_checkpoint": ["self", "model", "trial"],
    "_load_best_model": ["self"],
    "_determine_best_metric": ["self", "metrics", "trial"],
    "_evaluate": ["self", "trial", "ignore_keys_for_eval", "skip_scheduler"],
    "_maybe_log_save_evaluate": [
        "self",
        "tr_loss",
        "grad_norm",
        "model",
        "trial",
        "epoch",
        "ignore_keys_for_eval",
        "start_time",
        "learning_rate",
    ],
    "create_scheduler": ["self", "num_training_steps", "optimizer"],
    "get_batch_samples": ["self", "epoch_iterator", "num_batches", "device"],
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    assert list(inspect.signature(getattr(Trainer, name)).parameters) == SIGNATURES[name]


def test_every_override_of_a_private_name_is_here() -> None:
    overridden = {
        name
        for kind in HookedTrainer.__subclasses__()[0].__mro__
        if kind.__module__.startswith("gymnast.")
        for name in vars(kind)
        if name.startswith("_") and not name.startswith("__") and hasattr(Trainer, name)
    }
    assert overridden == {name for name in SIGNATURES if name.startswith("_")}
