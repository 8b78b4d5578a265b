"""Reads folders of tasks in Harbor's format.

    task.toml  instruction.md  environment/Dockerfile  tests/test.sh  solution/solve.sh

- `harbor_tasks` makes rows of them, for `TaskEnv`.
- `HarborTask` is one folder, and `Stage` one instruction with its tests: a task has one, or one for each `[[steps]]`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from .settings import Agent, Artifact, Healthcheck, Machine, Settings, Step, Verifier, resolve_variables, without_effect

ARTIFACTS = "/logs/artifacts"  # always an artifact

_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml")

Table = TypeVar("Table", bound=BaseModel)

logger = logging.getLogger("gymnast.envs")


class UnfitTaskError(ValueError):
    """A task that cannot be played here: its folder is broken, or it needs something that a box does not have."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Stage:
    """One instruction, and the tests of what the agent did then."""

    name: str  # "" for a task of one stage
    instruction: str
    agent: Agent
    verifier: Verifier
    tests: tuple[Path, ...]  # folders whose files go to /tests, later ones over earlier ones
    solution: Path | None
    workdir: Path | None  # files for the working directory, before the stage
    healthcheck: Healthcheck | None
    artifacts: tuple[Artifact, ...]
    min_reward: Mapping[str, float]  # by key; the task ends where a reward is below

    @property
    def verifier_image(self) -> Path | str | None:
        """The folder of a Dockerfile, or the name of an image, which then has the tests; None for the task's image."""
        if self.verifier.mode != "separate":
            return None
        if self.verifier.environment is not None and self.verifier.environment.docker_image is not None:
            return self.verifier.environment.docker_image
        return next((folder for folder in reversed(self.tests) if (folder / "Dockerfile").is_file()), None)


@dataclass(slots=True)
class HarborTask:
    """One folder of a task."""

    folder: Path
    settings: Settings

    @property
    def machine(self) -> Machine:
        return self.settings.environment

    @property
    def files(self) -> Path | None:
        """The files for the working directory: all of `environment/` if a named image comes without a Dockerfile."""
        folder = self.folder / "environment"
        return folder if folder.is_dir() and not (folder / "Dockerfile").exists() else None

    def stages(self) -> list[Stage]:
        """Return the stages in their order."""
        if not self.settings.steps:
            return [self._stage(self.folder, Step(name="task"))]
        return [self._stage(self.folder / "steps" / step.name, step) for step in self.settings.steps]

    def _stage(self, folder: Path, step: Step) -> Stage:
        settings, several = self.settings, folder != self.folder
        least = step.min_reward
        tests = [path for path in dict.fromkeys([self.folder / "tests", folder / "tests"]) if path.is_dir()]
        artifacts = [*settings.artifacts, *step.artifacts]
        if not any(artifact.source.rstrip("/") == ARTIFACTS for artifact in artifacts):
            artifacts.insert(0, Artifact(source=ARTIFACTS))
        hooks = [*settings.verifier.collect, *step.verifier.collect]
        env = settings.verifier.env | step.verifier.env
        return Stage(
            name=step.name if several else "",
            instruction=_without_canary(_read(folder / "instruction.md")),
            agent=_merged(settings.agent, step.agent),
            verifier=_merged(settings.verifier, step.verifier).model_copy(update={"collect": hooks, "env": env}),
            tests=tuple(tests),
            solution=next((path for path in (folder / "solution", self.folder / "solution") if path.is_dir()), None),
            workdir=folder / "workdir" if several and (folder / "workdir").is_dir() else None,
            healthcheck=step.healthcheck,
            artifacts=tuple(artifacts),
            min_reward=least if isinstance(least, dict) else {} if least is None else {"reward": least},
        )

    def without_effect(self) -> list[str]:
        """Return what the folder says and what changes nothing here: keys of `task.toml`, and files."""
        found = list(without_effect(self.settings))
        found += [str(path.relative_to(self.folder)) for path in sorted(self.folder.rglob(".harborignore"))]
        if (wanted := self.machine.cpus or 0) > (cpus := os.cpu_count() or 1):
            found.append(f"environment.cpus above the {cpus} of this machine, {wanted:g}")
        return found

    def network(self, of: Agent | Verifier) -> Literal["public", "no-network", "allowlist"]:
        """Return the network that the agent, or a verifier, asks for."""
        own = of.environment if isinstance(of, Verifier) else None
        return of.network_mode or (own and own.network_mode) or self.machine.network_mode or "public"


def harbor_tasks(
    folders: str | Path | Sequence[str | Path],
    *,
    fit: str | Path | Collection[str] | None = None,
    unfit: Literal["skip", "raise"] = "skip",
) -> list[dict[str, Any]]:
    """Return a row for each task in folders of Harbor's format, for `TaskEnv`: its `prompt`, `task` and `task_dir`.

    Args:
        folders: A task, or a folder of tasks, or several of them.
        fit: The names of the tasks to take, or the file that `gymnast check --tasks FOLDER --json` has printed.
        unfit: The treatment of a task that cannot be played, because its folder is broken or it needs something that a
            box does not have, such as services or a GPU: "skip" leaves it out and logs its name and the reason.

    Raises:
        UnfitTaskError: a task cannot be played, and `unfit="raise"`; or none can.
        ValueError: there is no task in a folder, or `fit` names one that is not there.
    """
    if unfit not in ("skip", "raise"):
        raise ValueError(f"unfit must be 'skip' or 'raise', got {unfit!r}")
    chosen, rows, refused = _names(fit), [], {}
    found = list(task_folders([folders] if isinstance(folders, str | Path) else folders))
    if chosen is not None and (missing := sorted(chosen - {folder.name for folder in found})):
        raise ValueError(f"fit names tasks that are not there: {', '.join(missing[:5])} ({len(missing)} in all)")
    for folder in found:
        if chosen is None or folder.name in chosen:
            try:
                rows.append(row_of(read_task(folder)))
            except UnfitTaskError as error:
                refused[folder.name] = error
    if refused and (unfit == "raise" or not rows):
        raise next(iter(refused.values()))
    if refused:
        reasons = "\n".join(f"  {name}: {error}" for name, error in refused.items())
        logger.warning("%d of %d tasks are left out:\n%s", len(refused), len(rows) + len(refused), reasons)
    return rows


def task_folders(folders: Iterable[str | Path]) -> Iterator[Path]:
    """Yield the folders of tasks; each of `folders` is one, or holds some, or is the `dataset.toml` beside some."""
    for given in folders:
        folder = Path(given).resolve()
        folder = folder.parent if folder.name == "dataset.toml" else folder
        tasks = [folder] if (folder / "task.toml").is_file() else sorted(p.parent for p in folder.glob("*/task.toml"))
        if not tasks:
            raise ValueError(f"{folder} has no task: neither it nor a folder in it has a task.toml")
        yield from tasks


def row_of(task: HarborTask) -> dict[str, Any]:
    """Return the row of a task."""
    return {"prompt": task.stages()[0].instruction, "task": task.folder.name, "task_dir": str(task.folder)}


def read_task(folder: str | Path) -> HarborTask:
    """Return the task in a folder.

    Raises:
        UnfitTaskError: the folder is broken, or the task needs something that a box does not have.
    """
    path = Path(folder) / "task.toml"
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise UnfitTaskError(f"{path} cannot be read: {error.strerror}") from None
    task = HarborTask(Path(folder), _settings(path, changed))
    try:
        fault = next(_faults(task), None)
    except ValueError as error:
        raise error if isinstance(error, UnfitTaskError) else UnfitTaskError(f"{path}: {error}") from None
    if fault is not None:
        raise UnfitTaskError(f"{path}: {fault}")
    return task


@lru_cache(maxsize=4096)
def _settings(path: Path, changed: int) -> Settings:
    try:
        return Settings.model_validate(tomllib.loads(path.read_text()))
    except ValidationError as error:
        fault = error.errors()[0]
        key, reason = ".".join(map(str, fault["loc"])), fault["msg"].removeprefix("Value error, ")
        expected = reason.replace("Input should be ", "")
        raise UnfitTaskError(f"{path}: {key} must be {expected}, got {fault['input']!r:.80}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UnfitTaskError(f"{path} is no TOML: {error}") from None


def _faults(task: HarborTask) -> Iterator[str]:
    """Yield the reasons why a task cannot be played here; a ValueError is one, too."""
    machines = {"environment": task.machine}
    if task.machine.docker_image is None and not (task.folder / "environment" / "Dockerfile").is_file():
        yield "there is neither environment/Dockerfile nor environment.docker_image"
    resolve_variables(task.machine.env, "environment.env")
    stages = task.stages()
    if len({task.network(stage.agent) for stage in stages}) > 1:
        yield "steps: their agents have different networks, and a box keeps the one that it has"
    for stage in stages:
        prefix = stage.name and f"steps.{stage.name}."
        if stage.verifier.environment is not None:
            machines[f"{prefix}verifier.environment"] = stage.verifier.environment
        yield from _faults_of_stage(task, stage, prefix)
    for name, machine in machines.items():
        for key, wanted in (("gpus", machine.gpus), ("tpu", machine.tpu), ("mcp_servers", machine.mcp_servers)):
            if wanted:
                yield f"{name}.{key} is {wanted!r:.80}, and a box has none"
        if machine.os.lower() != "linux":
            yield f"{name}.os is {machine.os!r}, and a box runs Linux"
    for folder in (task.folder / "environment", *(folder for stage in stages for folder in stage.tests)):
        for name in _COMPOSE:
            if (folder / name).is_file():
                yield f"{folder.name}/{name} describes services beside the box, which are not supported"


def _faults_of_stage(task: HarborTask, stage: Stage, prefix: str) -> Iterator[str]:
    resolve_variables(stage.verifier.env, f"{prefix}verifier.env")
    if stage.verifier_image is None and not any((folder / "test.sh").is_file() for folder in stage.tests):
        yield f"{prefix}tests: there is no tests/test.sh"
    for name, phase in (("agent", stage.agent), ("verifier", stage.verifier)):
        if task.network(phase) == "allowlist":
            yield f"{prefix}{name}: network_mode is 'allowlist', and a box has the whole network or none"
    for name, entries in (("artifacts", stage.artifacts), ("verifier.collect", stage.verifier.collect)):
        for entry in entries:
            if entry.service not in (None, "main"):
                yield f"{prefix}{name} names the service {entry.service!r}, and a task has one box"


def _merged(whole: Table, own: Table) -> Table:
    """Return the table of a task with the keys that one of its steps sets."""
    return whole.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UnfitTaskError(f"{path} cannot be read: {error}") from None


def _without_canary(text: str) -> str:
    """Return an instruction without the canary lines at its beginning, which mark data that no model should learn."""
    lines = text.split("\n")
    first = next((n for n, line in enumerate(lines) if not _CANARY.fullmatch(line.strip())), len(lines))
    return "\n".join(lines[first:]).lstrip("\n") if first else text


def _names(fit: str | Path | Collection[str] | None) -> set[str] | None:
    """Return names of tasks, which may be in a file; None for all."""
    if not isinstance(fit, str | Path):
        return None if fit is None else set(fit)
    try:
        return set(json.loads(Path(fit).read_text())["fit"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{fit} is not what `gymnast check --tasks FOLDER --json` prints, an object with 'fit': {error!r}"
        ) from None
