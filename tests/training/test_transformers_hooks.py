"""Methods of transformers that gymnast overrides or calls still have the expected signatures."""

from __future__ import annotations

import inspect

import pytest
from transformers import Trainer

from gymnast.trainer import AgentTrainer

SIGNATURES = {
    "_get_grad_norm": ["self", "model", "grad_norm"],
    "_save_rng_state": ["self", "output_dir"],
    "_load_from_checkpoint": ["self", "resume_from_checkpoint", "model"],
    "_save_checkpoint": ["self", "model", "trial"],
    "_evaluate": ["self", "trial", "ignore_keys_for_eval", "skip_scheduler"],
    "create_scheduler": ["self", "num_training_steps", "optimizer"],
    "get_batch_samples": ["self", "epoch_iterator", "num_batches", "device"],
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    assert list(inspect.signature(getattr(Trainer, name)).parameters) == SIGNATURES[name]


def test_at_most_four_private_names_are_overridden() -> None:
    overridden = {
        name
        for kind in AgentTrainer.__mro__
        if kind.__module__.startswith("gymnast.")
        for name in vars(kind)
        if name.startswith("_") and not name.startswith("__") and hasattr(Trainer, name)
    }
    assert overridden == {"_get_grad_norm", "_save_rng_state", "_load_from_checkpoint", "_evaluate"}
