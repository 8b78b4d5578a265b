"""What the shell completes: names in Python files, options of a training. Nothing is imported, so that TAB is quick."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def environments(incomplete: str) -> list[str]:
    """Return the classes of Python files, as `file.py:Class`."""
    return [*_objects(incomplete, classes=True)]


def players(incomplete: str) -> list[str]:
    """Return the functions and values of Python files, as `file.py:name`."""
    return [*_objects(incomplete, classes=False)]


def rows(incomplete: str) -> list[str]:
    """Return files of rows, and the functions and values of Python files."""
    return [*_files(incomplete, ".jsonl", ".json", ".csv", ".parquet"), *players(incomplete)]


def runs(incomplete: str) -> list[str]:
    """Return run files, and the classes of Python files."""
    return [*_files(incomplete, ".toml", ".yaml", ".yml"), *environments(incomplete)]


def settings(incomplete: str) -> list[str]:
    """Return the options of a training, as `name=`."""
    import ast
    from importlib.util import find_spec

    files = [Path(__file__).parents[2] / "trainer" / "options" / "config.py"]
    if (transformers := find_spec("transformers")) is not None:
        files += [Path(folder) / "training_args.py" for folder in transformers.submodule_search_locations or ()]
    classes = [node for file in files for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
    fields = [node.target for one in classes for node in one.body if isinstance(node, ast.AnnAssign)]
    names = sorted({f"{field.id}=" for field in fields if isinstance(field, ast.Name) and field.id[0] != "_"})
    return [name for name in names if name.startswith(incomplete)]


def _files(incomplete: str, *endings: str) -> Iterator[str]:
    """Yield the files with these endings that begin like this, and folders, which end with a slash."""
    folder = incomplete.rpartition("/")[0] + "/" if "/" in incomplete else ""
    for path in sorted(Path(folder or ".").expanduser().glob("*")):
        name = f"{folder}{path.name}" + "/" * path.is_dir()
        if name.startswith(incomplete) and (name.endswith(endings) or path.is_dir()) and path.name[0] != ".":
            yield name


def _objects(incomplete: str, *, classes: bool) -> Iterator[str]:
    import ast

    for name in _files(incomplete.partition(":")[0], ".py"):
        if name.endswith("/"):
            yield name
            continue
        try:
            body = ast.parse(Path(name).expanduser().read_text()).body
        except (OSError, SyntaxError, ValueError):
            continue
        for node in body:
            if isinstance(node, ast.Assign):
                found = [target.id for target in node.targets if isinstance(target, ast.Name)]
            else:
                found = [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else []
            written = [f"{name}:{one}" for one in found if one[0] != "_" and isinstance(node, ast.ClassDef) == classes]
            yield from (one for one in written if one.startswith(incomplete))
