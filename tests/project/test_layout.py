"""Folders at the root install as the package gymnast, and imports between them point one way."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import pytest

import gymnast

ROOT = Path(__file__).resolve().parents[2]
# each may import itself and what stands to its left
PACKAGES = ("sandbox", "envs", "records", "trainer", "cluster", "cli")
ROOMS: dict[str, set[str]] = {  # each folder below a package, and the rooms of its own package that it may import
    "sandbox": set(),  # the contract: base, limits, errors, arguments, keywords, cancellation
    "sandbox/guest": set(),  # not even the contract: it runs inside the box
    "sandbox/host": {"sandbox", "sandbox/guest"},
    "sandbox/images": {"sandbox"},
    "sandbox/docker": {"sandbox", "sandbox/host", "sandbox/images"},
    "sandbox/local": {"sandbox", "sandbox/host", "sandbox/images"},
    "sandbox/defaults": {"sandbox", "sandbox/docker", "sandbox/local"},
    "sandbox/pool": {"sandbox"},
    "sandbox/testing": {"sandbox"},
    "envs/runtime": set(),
    "envs": {"envs/runtime"},  # the nouns
    "envs/policies": {"envs", "envs/runtime"},
    "envs/tools": {"envs", "envs/runtime"},
    "envs/cassettes": {"envs", "envs/runtime", "envs/tools"},
    "envs/tool_env": {"envs", "envs/runtime", "envs/tools", "envs/cassettes"},
    "envs/code": {"envs", "envs/tools", "envs/tool_env"},
    "envs/tasks": {"envs", "envs/tools", "envs/tool_env"},
    "envs/engine": {"envs", "envs/runtime", "envs/tools", "envs/tool_env"},
    "envs/adapters": {"envs", "envs/runtime", "envs/policies", "envs/tools", "envs/tool_env", "envs/engine"},
    "envs/examples": {"envs", "envs/tools", "envs/tool_env"},
    "records": set(),
    "records/metrics": set(),
    "records/files": {"records/metrics"},
    "records/evaluations": {"records/files"},
    "records/alarms": {"records/files", "records/metrics", "records/evaluations"},
    "trainer/tool_calls": set(),
    "trainer/models": set(),
    "trainer/generation": {"trainer/models"},
    "trainer/vllm": {"trainer/models", "trainer/generation"},
    "trainer/chat": {"trainer/tool_calls", "trainer/models", "trainer/vllm"},
    "trainer/learning": {"trainer/models"},
    "trainer/run_log": {"trainer/learning"},
    "trainer/testing": {"trainer/models", "trainer/chat", "trainer/learning"},
    "trainer/rollout": {
        "trainer/tool_calls",
        "trainer/models",
        "trainer/generation",
        "trainer/chat",
        "trainer/learning",
        "trainer/run_log",
    },
    "trainer/options": {"trainer/generation", "trainer/learning", "trainer/rollout"},
    "trainer/setup": {
        "trainer/models",
        "trainer/generation",
        "trainer/vllm",
        "trainer/chat",
        "trainer/learning",
        "trainer/rollout",
        "trainer/run_log",
        "trainer/options",
    },
    "trainer/loop": {
        "trainer/models",
        "trainer/learning",
        "trainer/rollout",
        "trainer/run_log",
        "trainer/options",
        "trainer/setup",
    },
    "trainer": {
        "trainer/models",
        "trainer/generation",
        "trainer/chat",
        "trainer/learning",
        "trainer/rollout",
        "trainer/run_log",
        "trainer/options",
        "trainer/setup",
        "trainer/loop",
    },
    "cluster/hosting": set(),
    "cluster/on_ray": {"cluster/hosting"},
    "cluster/websocket": {"cluster/hosting"},
    "cluster": set(),
    "cli/terminal": set(),
    "cli/arguments": {"cli/terminal"},
    "cli/microscope": set(),
    "cli/checks": {"cli/terminal"},
    "cli/rescoring": {"cli/terminal"},
    "cli/exporting": {"cli/terminal"},
    "cli/commands": {
        *("cli/terminal", "cli/arguments", "cli/microscope"),
        *("cli/checks", "cli/rescoring", "cli/exporting"),
    },
    "cli": {"cli/terminal", "cli/commands"},
}
ROOT_FILES: dict[str, set[str]] = {  # files at a package's root, and those beside them that they may import
    "sandbox/base": {"box_image", "errors", "lifecycle"},
    "sandbox/screen": {"box", "terminal_display"},
    "sandbox/box": {"base", "box_image", "errors", "lifecycle", "limits"},
    "sandbox/lifecycle": {"errors", "limits"},
    "sandbox/arguments": {"limits"},
    "sandbox/limits": {"keywords"},
    "envs/core": {"spaces"},
    "envs/extras": {"core"},
    "envs/images": {"extras"},
    "envs/tokens": {"images"},
    "envs/json_values": {"images"},
    "envs/episode": {"core", "images", "json_values", "tokens"},
    "envs/policy": {"core", "episode", "tokens"},
    "envs/registry": {"core", "episode", "installed"},
    "envs/rewards": {"core", "episode"},
}
TEMPLATE = ROOT / "cli" / "template"  # the files of a new project, which are no modules of gymnast
FRONT_DOORS = {"__init__.py", "__main__.py"}  # of a package: they wire its rooms together, and no room imports them
CLUSTER_LIBRARIES = {"ray"}
LEARNING_LIBRARIES = {"torch", "transformers", "accelerate", "peft", "trl", "vllm"}


def load_pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def source_files(package: str) -> list[Path]:
    return sorted(path for path in (ROOT / package).rglob("*.py") if TEMPLATE not in path.parents)


def module_name(path: Path) -> str:
    """`envs/core.py` -> `gymnast.envs.core`; `envs/__init__.py` -> `gymnast.envs`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(["gymnast", *(part for part in parts if part != "__init__")])


ALL_MODULES = [module_name(path) for package in PACKAGES for path in source_files(package)]


class Import(NamedTuple):
    where: str  # file:line
    target: str  # absolute name of the imported module, or of a name in it
    relative: bool


@cache
def imports_of(path: Path, source: str) -> list[Import]:
    """Every import statement: at the top, in functions, and under TYPE_CHECKING."""
    found = []
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                targets, relative = [alias.name for alias in names], False
            case ast.ImportFrom(module=module, names=names, level=0):
                targets, relative = [f"{module}.{alias.name}" for alias in names], False
            case ast.ImportFrom(module=module, names=names, level=level):
                base = package.split(".")[: len(package.split(".")) - level + 1]
                base += [module] if module else []
                targets, relative = [".".join([*base, alias.name]) for alias in names], True
            case ast.Call(func=ast.Name(id="import_module" | "__import__"), args=[ast.Constant(value=str(name)), *_]):
                targets, relative = [name], False
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
                targets, relative = [name], False
            case _:
                continue
        found += [Import(f"{path.relative_to(ROOT)}:{node.lineno}", target, relative) for target in targets]
    return found


def import_faults(path: Path, source: str) -> list[str]:
    """Violations of the layout rules in this file, one sentence for each import."""
    package = path.relative_to(ROOT).parts[0]
    allowed = PACKAGES[: PACKAGES.index(package) + 1]
    faults = []
    for where, target, relative in imports_of(path, source):
        top, _, rest = target.partition(".")
        if relative:
            folder = rest.partition(".")[0]
            if top != "gymnast" or folder not in allowed:
                faults.append(f"{where} imports {target}: {package} may import {', '.join(allowed)} only")
        elif top == "gymnast" and target not in ("gymnast.__version__", "gymnast.REPOSITORY"):
            faults.append(f"{where} imports {target}: inside the packages write a relative import")
        elif top in PACKAGES:
            faults.append(f"{where} imports {target}: the folders are not importable by their bare names")
        elif top in LEARNING_LIBRARIES and package != "trainer":
            faults.append(f"{where} imports {target}: only trainer/ may import {top}")
        elif top in CLUSTER_LIBRARIES and package != "cluster":
            faults.append(f"{where} imports {target}: only cluster/ may import {top}")
    return faults


def room_of(parts: tuple[str, ...] | list[str]) -> str:
    """The room of a module: `("trainer", "chat", "recognition")` is in `trainer/chat`."""
    is_folder = len(parts) > 1 and (ROOT / parts[0] / parts[1]).is_dir()
    return "/".join(parts[: 2 if is_folder else 1])


def room_faults(path: Path, source: str) -> list[str]:
    """Imports of this file from rooms and root files of its package that the tables do not allow."""
    parts = path.relative_to(ROOT).parts
    if len(parts) == 2 and path.name in FRONT_DOORS:
        return []
    room = room_of(parts)
    faults = []
    for where, target, relative in imports_of(path, source):
        other = room_of(target.split(".")[1:]) if relative else room
        same_package = other.partition("/")[0] == room.partition("/")[0]
        if other != room and same_package and other not in ROOMS[room]:
            doors = ", ".join(sorted(ROOMS[room])) or "no other room"
            faults.append(f"{where} imports {target}: {room} may import {doors}, and not {other}")
        if relative and other == room == parts[0]:
            file, root_file = path.stem, target.split(".")[2]
            if root_file != file and root_file not in ROOT_FILES.get(f"{room}/{file}", ()):
                faults.append(f"{where} imports {target}: {room}/{file} may not import {room}/{root_file}")
    return faults


def run_python(
    *arguments: str | Path, cwd: Path, python: str | Path = sys.executable
) -> subprocess.CompletedProcess[str]:
    """A fresh, isolated interpreter (-I: no PYTHONPATH, no current folder on the path) in which warnings are errors."""
    command = [python, "-I", "-W", "error", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)


# --- the folders and pyproject.toml -----------------------------------------------------------------------------


def test_every_package_folder_is_listed() -> None:
    on_disk = {
        module_name(path) for package in PACKAGES for path in source_files(package) if path.name == "__init__.py"
    }
    setuptools = load_pyproject()["tool"]["setuptools"]
    assert set(setuptools["packages"]) == on_disk | {"gymnast"}
    folders = {f"gymnast.{folder}": folder for folder in PACKAGES}
    assert setuptools["package-dir"] == {"gymnast": "gymnast", **folders}


def test_every_source_file_is_in_a_package() -> None:
    folders = {path.parent for package in PACKAGES for path in source_files(package)}
    assert [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_version_is_read_without_loading_anything_else(tmp_path: Path) -> None:
    program = (
        "import sys, gymnast; print(gymnast.__version__, [name for name in sys.modules if name.startswith('gymnast.')])"
    )
    result = run_python("-c", program, cwd=tmp_path)
    assert result.stdout.split(maxsplit=1) == [gymnast.__version__, "[]\n"]


def test_the_main_names_come_from_their_packages() -> None:
    assert [getattr(gymnast, name).__name__ for name in gymnast.__all__] == gymnast.__all__
    with pytest.raises(ImportError, match="GRPOTrainers"):
        from gymnast import GRPOTrainers  # type: ignore[attr-defined]  # noqa: F401


def test_the_metadata_has_a_licence_and_authors() -> None:
    project = load_pyproject()["project"]
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert project["authors"]


def test_every_extra_is_used() -> None:
    """An extra that no file imports installs packages for nothing."""
    imported = {
        target.partition(".")[0]
        for folder in (*PACKAGES, "examples", "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        for _, target, relative in imports_of(path, path.read_text())
        if not relative
    }
    extras = set(load_pyproject()["project"]["optional-dependencies"]) - {"dev", "docs", "test", "train", "vllm-cpu"}
    modules = {"browser": "playwright", "terminal": "pyte", "vision": "PIL"}
    assert {modules.get(extra, extra) for extra in extras} <= imported


def test_the_installed_package_is_this_checkout() -> None:
    for package in PACKAGES:
        assert importlib.util.find_spec(f"gymnast.{package}"), "a new folder: run pip install --no-deps -e ."
        module = importlib.import_module(f"gymnast.{package}")
        assert Path(str(module.__file__)).resolve().parent == ROOT / package


# --- the direction of imports -----------------------------------------------------------------------------------


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_to_the_left(package: str) -> None:
    faults = [fault for path in source_files(package) for fault in import_faults(path, path.read_text())]
    assert faults == []


@pytest.mark.parametrize(
    ("file", "source", "message"),
    [
        ("envs/x.py", "from ..trainer import chat", "imports gymnast.trainer.chat: envs may import sandbox, envs only"),
        ("envs/x.py", "from .. import trainer", "imports gymnast.trainer: envs may import"),
        ("sandbox/x.py", "def f():\n    from ..envs.core import Task", "sandbox/x.py:2 imports gymnast.envs.core.Task"),
        ("envs/x.py", "if TYPE_CHECKING:\n    import torch", "only trainer/ may import torch"),
        ("envs/x.py", "from transformers import Trainer", "only trainer/ may import transformers"),
        ("envs/x.py", "importlib.import_module('torch.nn')", "only trainer/ may import torch"),
        ("trainer/x.py", "def f():\n    import ray.util", "only cluster/ may import ray"),
        ("trainer/x.py", "import gymnast.envs", "write a relative import"),
        ("trainer/x.py", "from envs.core import Task", "not importable by their bare names"),
        ("trainer/__init__.py", "from ...other import x", "trainer may import"),
    ],
)
def test_faulty_imports_are_found(file: str, source: str, message: str) -> None:
    [fault] = import_faults(ROOT / file, source)
    assert message in fault


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_through_their_doors(room: str) -> None:
    files = [path for path in source_files(room.partition("/")[0]) if room_of(path.relative_to(ROOT).parts) == room]
    assert files
    assert [fault for path in files for fault in room_faults(path, path.read_text())] == []


def test_a_loop_names_its_subject() -> None:
    folders = [*PACKAGES, "tests", "examples", "benchmarks"]
    sources = {path: path.read_text() for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))}
    suspects = [path for path, source in sources.items() if re.search(r"\beach(\.\w|[\w, ():]*(in|=)\W)", source)]
    names = [(path, node) for path in suspects for node in ast.walk(ast.parse(sources[path]))]
    assert not [f"{path}:{node.lineno}" for path, node in names if isinstance(node, ast.Name) and node.id == "each"]


def test_every_room_is_in_the_table_and_no_circle_is_among_them() -> None:
    assert {room_of(path.relative_to(ROOT).parts) for package in PACKAGES for path in source_files(package)} == set(
        ROOMS
    )
    TopologicalSorter(ROOMS).prepare()  # raises CycleError


def test_no_circle_is_among_modules() -> None:
    """Those that only types need count, too."""
    graph: dict[str, set[str]] = {}
    for path in (path for package in PACKAGES for path in source_files(package)):
        targets = {target for _, target, relative in imports_of(path, path.read_text()) if relative}
        names = {target if target in ALL_MODULES else target.rpartition(".")[0] for target in targets}
        graph[module_name(path)] = names - {module_name(path)}
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize(
    ("file", "source", "message"),
    [
        ("sandbox/pool/x.py", "from ..docker.engine import Engine", "sandbox/pool may import sandbox, and not"),
        ("sandbox/guest/x.py", "from ..base import Status", "sandbox/guest may import no other room"),
        ("sandbox/x.py", "def f():\n    from .pool import pool_of", "sandbox may import no other room"),
        ("trainer/learning/x.py", "from ..options.config import AgentConfig", "and not trainer/options"),
        ("trainer/rollout/x.py", "from .. import trainer", "and not trainer"),
        ("envs/spaces.py", "from .core import Message", "envs/spaces may not import envs/core"),
    ],
)
def test_faulty_doors_are_found(file: str, source: str, message: str) -> None:
    [fault] = room_faults(ROOT / file, source)
    assert message in fault


# --- one name for each module -----------------------------------------------------------------------------------


def test_bare_names_do_not_import(tmp_path: Path) -> None:
    names = ["sandbox", "sandbox.base", "envs", "envs.core", "trainer"]
    assert [name for name in names if importlib.util.find_spec(name.partition(".")[0])] == []
    program = f"import importlib.util; print(*map(importlib.util.find_spec, {PACKAGES}))"
    assert set(run_python("-c", program, cwd=tmp_path).stdout.split()) == {"None"}


# --- importing does nothing -------------------------------------------------------------------------------------


def test_importing_without_torch(tmp_path: Path) -> None:
    modules = ", ".join(name for name in ALL_MODULES if name.split(".")[1] in ("sandbox", "envs", "records", "cluster"))
    loaded = f"[name for name in {sorted(LEARNING_LIBRARIES | CLUSTER_LIBRARIES)} if name in sys.modules]"
    result = run_python("-c", f"import sys, {modules}; sys.exit(str({loaded}))", cwd=tmp_path)
    assert (result.stdout, result.stderr.strip()) == ("", "[]")


def test_importing_is_silent_and_leaves_no_files(tmp_path: Path) -> None:
    # Warnings of other libraries' own imports are not ours to forbid, so they are loaded first, warnings off.
    first = "import warnings; warnings.simplefilter('ignore'); import gymnasium, torch, transformers\n"
    packages = ", ".join(f"gymnast.{package}" for package in PACKAGES)
    result = run_python("-c", f"{first}warnings.simplefilter('error'); import {packages}", cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


# --- what users install -----------------------------------------------------------------------------------------


def test_the_wheel_holds_everything(tmp_path: Path) -> None:
    """The wheel built from the sdist, which has the files of the one built from the tree."""
    tree = tmp_path / "gymnast"  # a copy, to keep the checkout clean
    for name in (*PACKAGES, "gymnast", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tree / name)
    for arguments in (["--wheel", "--outdir", "from-tree"], ["--outdir", "from-sdist"]):
        command = [sys.executable, "-m", "build", "--no-isolation", *arguments]
        built = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=240)
        assert built.returncode == 0, built.stdout + built.stderr
    [wheel], [same] = (list((tree / source).glob("*.whl")) for source in ("from-sdist", "from-tree"))
    assert sorted(ZipFile(wheel).namelist()) == sorted(ZipFile(same).namelist())

    fresh = tmp_path / "fresh"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", fresh], check=True, timeout=120)
    fresh_python = fresh / "bin" / "python"
    ask = run_python("-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path, python=fresh_python)
    site_packages = Path(ask.stdout.strip())
    install = ["-m", "pip", "--python", fresh_python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    installed = subprocess.run([sys.executable, *install], capture_output=True, text=True, timeout=240)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    # The dependencies come from this environment. A plain path line adds the folder but not the .pth files in it, so
    # the editable install of this checkout stays out of sight.
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + os.linesep)

    program = (
        "import importlib, pathlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    path = pathlib.Path(importlib.import_module(name).__file__)\n"
        f"    assert path.is_relative_to({str(site_packages)!r}), path\n"
    )
    program_file = tmp_path / "program.py"
    program_file.write_text(program)
    imported = subprocess.run(
        [fresh_python, "-I", program_file, *ALL_MODULES], capture_output=True, text=True, timeout=240
    )
    assert imported.returncode == 0, imported.stderr

    data = [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    data = [path for path in data if path.suffix not in {".py", ".pyc"} or TEMPLATE in (ROOT / path).parents]
    assert {Path(package, "py.typed") for package in PACKAGES} <= set(data)
    assert [str(path) for path in data if not (site_packages / "gymnast" / path).is_file()] == []


# --- the rules of the test run itself ---------------------------------------------------------------------------


@pytest.mark.parametrize(("require_all", "outcome"), [("0", "2 skipped, 1 xfailed"), ("1", "1 xfailed, 2 errors")])
def test_a_skip_fails_when_everything_is_required(require_all: str, outcome: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_module.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    (tmp_path / "test_functions.py").write_text(
        "import pytest\n"
        "@pytest.mark.skip(reason='no engine')\ndef test_skipped() -> None: ...\n"
        "@pytest.mark.xfail\ndef test_expected() -> None: raise ValueError\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--continue-on-collection-errors", tmp_path]
    environment = os.environ | {"GYMNAST_REQUIRE_ALL": require_all}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert outcome in result.stdout
