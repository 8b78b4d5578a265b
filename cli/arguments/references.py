"""Names on the command line that stand for Python objects: `file.py:Name`, `package.module:Name`, environments."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from ...envs.installed import installed_environments
from ..terminal.exits import CommandError
from .run_file import ENDINGS as RUN_FILES

if TYPE_CHECKING:
    from ...envs.policy import Policy
    from ...envs.registry import EnvironmentLike


def load_environment(reference: str) -> EnvironmentLike:
    """Return the environment that a reference names: a name that is known, or a class, an instance or a function."""
    if reference.endswith(".py"):
        raise CommandError(f"{reference} is a file: name the class in it, {reference}:MyEnvironment")
    if reference.endswith(RUN_FILES):
        raise CommandError(
            f"{reference} describes a run, which gymnast train takes; this command takes the run's environment, "
            f"such as file.py:MyEnvironment"
        )
    if ":" not in reference and (Path(reference).suffix or Path(reference).is_dir()):
        known = [*(entry.name for entry in installed_environments()), *(path.name for path in Path().iterdir())]
        near = difflib.get_close_matches(reference, [name for name in known if name != reference], n=1)
        raise CommandError(
            f"{reference} is neither an environment, such as file.py:MyEnvironment, nor a run file, whose name ends "
            f"with {', '.join(RUN_FILES)}{f'; do you mean {near[0]!r}?' if near else ''}"
        )
    import gymnasium

    from ...envs.registry import EnvironmentSource

    place, _, name = reference.rpartition(":")
    is_name = not place or not name.isidentifier()  # also `module:name/Game-v0`, as Gymnasium takes it
    environment = reference if is_name else load_object(reference, "an environment")
    try:
        EnvironmentSource.of(environment)
    except gymnasium.error.Error as error:
        forms = "an environment is an installed one, a Gymnasium id, file.py:Class or package.module:Class"
        raise CommandError(f"{reference}: {str(error).rstrip('.')}; {forms}") from error
    except TypeError as error:
        raise CommandError(f"{reference}: {error}") from error
    return environment


def load_policy(reference: str) -> Policy:
    """Return the policy that a reference names: a `Policy`, a list of answers, or a function that answers."""
    from ...envs.policy import ScriptedPolicy

    script = load_object(reference, "a policy")
    is_class = isinstance(script, type)
    if hasattr(script, "begin") and not is_class:
        return script
    if is_class or not (callable(script) or isinstance(script, list | tuple)):
        raise CommandError(
            f"{reference} must be a list of answers, a function that answers, or a Policy; got {script!r}"
        )
    return ScriptedPolicy(cast(Any, script))


def load_object(reference: str, kind: str) -> Any:
    """Return the object that `file.py:name` or `package.module:name` names; `kind` says in errors what it is for.

    Raises:
        CommandError: the reference has another form, or the file, the module or the name does not exist.
        Exception: the module raised it when it was imported.
    """
    place, _, name = reference.rpartition(":")
    if not place:
        raise CommandError(f"{reference!r} does not name {kind}: write file.py:name or package.module:name")
    module = _load_file(Path(place)) if place.endswith(".py") else _import(place)
    if not hasattr(module, name):
        raise CommandError(f"{place} has no {name!r}{_names_in(module, name)}")
    return getattr(module, name)


def _load_file(path: Path) -> ModuleType:
    """Import a file; files beside it can be imported by it, as when Python runs it as a program."""
    path = path.resolve()
    if not path.is_file():
        raise CommandError(f"there is no file {path}")
    put_on_path(path.parent)
    spec = importlib.util.find_spec(path.stem)
    if spec is None or Path(spec.origin or "").resolve() != path:
        raise CommandError(f"{path} has the name of another module, {path.stem!r}; rename the file")
    return importlib.import_module(path.stem)


def _import(name: str) -> ModuleType:
    put_on_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports another one that is not
        raise CommandError(f"there is no module {name!r}, neither installed nor in {os.getcwd()}") from None


def name_of(reference: str) -> str:
    """Return the last part of a reference, for names of files: `gymnast/Calculator-v0` -> `Calculator-v0`."""
    return reference.rstrip("/").replace(":", "/").rpartition("/")[2]


def put_on_path(folder: Path) -> None:
    """Let modules of a folder be imported."""
    if str(folder.resolve()) not in sys.path:
        sys.path.insert(0, str(folder.resolve()))


def _names_in(module: ModuleType, name: str) -> str:
    names = {known: value for known, value in vars(module).items() if not known.startswith("_")}
    if near := difflib.get_close_matches(name, names, n=1):
        return f"; do you mean {near[0]!r}?"
    own = sorted(known for known, value in names.items() if getattr(value, "__module__", None) == module.__name__)
    return f"; it has {', '.join(own)}" if own else ""
