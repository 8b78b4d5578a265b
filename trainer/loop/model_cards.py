"""The model card that a trainer writes beside a model, for the Hugging Face Hub."""

from __future__ import annotations

import inspect
import platform
import re
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from ...envs.installed import load_installed
from ...envs.registry import EnvironmentLike, EnvironmentSource
from ...records.files.model_card import CardFacts, model_card
from ...records.files.run import Run
from ...records.files.run_files import line_files
from ..models.adapters import has_adapter
from ..models.contexts import file_bars
from ..run_log.run_folder import RunFolder
from ..setup.parts import Parts
from .training_loop import TrainingLoop
from .transformers_hooks import HookedTrainer

CARD, CURVE = "README.md", "reward.png"

SHOWN = (
    *("learning_rate", "lr_scheduler_type", "max_steps", "num_train_epochs", "per_device_train_batch_size"),
    *("gradient_accumulation_steps", "num_generations", "max_completion_length", "max_turns", "temperature"),
    *("loss_type", "beta", "advantage_estimator", "seed"),
)
"""Options that a card names, if they differ from their default."""


class WritesModelCard(HookedTrainer[TrainingLoop]):
    """A trainer whose models have a card: what they were trained in, how well they do, and how to train them again."""

    parts: Parts

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the weights, the tokenizer and, unless a checkpoint is saved, the model card.

        A `README.md` without metadata of the Hub, such as that of a project, is left alone.
        """
        with file_bars(shown=not self.args.disable_tqdm):
            super().save_model(output_dir, _internal_call)
        folder = Path(output_dir or self.args.output_dir or ".")
        card = folder / CARD
        is_free = not card.exists() or card.read_text().startswith("---\n")
        if not _internal_call and is_free and self.is_world_process_zero():
            self._write_card(folder)

    def create_model_card(  # type: ignore[override]
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        dataset_tags: str | list[str] | None = None,
    ) -> None:
        """Write the model card into the output_dir; `push_to_hub` passes its further arguments on."""
        if self.is_world_process_zero():
            data_sets = {} if dataset_tags is None else {"datasets": _listed(dataset_tags)}
            given = {"base_model": finetuned_from} if finetuned_from is not None else {}
            metadata = {"language": language, "license": license, **given, **data_sets}
            self._write_card(Path(self.args.output_dir or "."), model_name, _listed(tags), **metadata)

    def _write_card(self, folder: Path, name: str | None = None, tags: Any = (), **metadata: Any) -> None:
        recorders = [callback for callback in self.callback_handler.callbacks if isinstance(callback, RunFolder)]
        source = recorders[0] if recorders else None
        is_recorded = source is not None and self.state.global_step > 0 and line_files(source.path)
        run = Run(source.path) if source is not None and is_recorded else None
        has_curve = run is not None and (run.folder / CURVE).is_file()
        if run is not None and has_curve and run.folder.resolve() != folder.resolve():
            shutil.copy(run.folder / CURVE, folder)  # a link on the Hub leads to a file beside the card
        config: Any = self.parts.config
        packages = ("gymnast-rl", "transformers", "torch")
        changed = [option for option in SHOWN if getattr(config, option) != getattr(type(config), option)]
        facts = CardFacts(
            name=name or folder.resolve().name,
            algorithm=type(config).__name__.removesuffix("Config"),
            environments=_environments(self.parts.environment),
            rewards=self.parts.player.engine.rewards.weights,
            options={option: getattr(config, option) for option in changed},
            versions={package: version(package) for package in packages} | {"Python": platform.python_version()},
            metadata=self._metadata(tags) | metadata,
        )
        (folder / CARD).write_text(model_card(facts, run, curve=CURVE if has_curve else None), encoding="utf-8")

    def _metadata(self, tags: Any) -> dict[str, Any]:
        model = self.parts.model
        base = model.config._name_or_path
        is_of_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", base) and not Path(base).is_dir()
        return {
            "base_model": base if is_of_hub else None,
            "library_name": "peft" if has_adapter(model) else "transformers",
            "pipeline_tag": "text-generation",
            "tags": ["gymnast", "reinforcement-learning", *tags],
        }


def _environments(environment: EnvironmentLike) -> dict[str, str]:
    """Return the docstring of each environment by its name, or that of its class. None is made: it may need a host."""
    if isinstance(environment, EnvironmentSource):  # on other machines
        return {name or type(environment).__name__: "" for name in environment.names}
    entries = environment if isinstance(environment, Mapping) else {None: environment}
    kinds = {name: _kind_of(entry) for name, entry in entries.items()}
    return {name or kind.__name__: inspect.cleandoc(kind.__doc__ or "") for name, kind in kinds.items()}


def _kind_of(entry: Any) -> Any:
    """Return the class of an environment, or the function that makes it."""
    if isinstance(entry, str):
        offered = load_installed(entry)
        if offered is not None:
            return _kind_of(offered)
        entry = gymnasium.spec(entry.rpartition(":")[2]).entry_point
        return load_env_creator(entry) if isinstance(entry, str) else entry
    return type(entry.unwrapped) if isinstance(entry, gymnasium.Env) else entry


def _listed(names: str | list[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else [*(names or ())]
