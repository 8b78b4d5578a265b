"""Arguments of executors: a mistake is reported where it is made, and no option is silently ignored."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gymnast.sandbox import DockerExecutor, Engine, Limits, LocalExecutor, ScriptedExecutor

MAKERS: dict[str, Callable[..., Any]] = {
    "docker": DockerExecutor,
    "local": LocalExecutor,
    "scripted": partial(ScriptedExecutor, []),
}
OF_CODE = ("docker", "local")


@pytest.mark.parametrize("make", [DockerExecutor, LocalExecutor])
@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"env": {3: "N"}}, TypeError, "both of them str, got 3: 'N'"),
        ({"env": {"": "x"}}, ValueError, "a name in env is not empty .* got ''"),
        ({"env": {"A\0": "x"}}, ValueError, "a name in env .* got 'A"),
        ({"env": {"A": "x\0"}}, ValueError, r"env\['A'\] holds a NUL"),
        ({"preload": [3]}, TypeError, r"a list of modules' names, .* got \[3\]"),
        ({"preload": ["numpy", "import os"]}, ValueError, "got 'import os'"),
        ({"start_timeout": 0}, ValueError, "start_timeout must be a positive number"),
    ],
)
def test_impossible_arguments(
    make: Callable[..., Any], options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        make(**options)


@pytest.mark.parametrize("make", OF_CODE)
@pytest.mark.parametrize(
    ("files", "kind", "message"),
    [
        ({"a": b"123456789ab"}, ValueError, r"files\['a'\] has 11 bytes, Limits\.max_file is 10"),
        ({"a": "é" * 6}, ValueError, r"files\['a'\] has 12 bytes"),
        ({3: "x"}, TypeError, "got the path 3"),
        ({"a": 3}, TypeError, r"files\['a'\] must be bytes or str, got int: 3"),
        ({"/etc/passwd": "x"}, ValueError, "in the workspace, relative to it, got '/etc/passwd'"),
        ({"/workspace/a": "x"}, ValueError, "got '/workspace/a'"),
        ({"a/../../b": "x"}, ValueError, r"got 'a/\.\./\.\./b'"),
        ({"": "x"}, ValueError, "got ''"),
        ({"a/": "x"}, ValueError, "got 'a/'"),
        ({".": "x"}, ValueError, r"got '\.'"),
        ({"a\0b": "x"}, ValueError, "got 'a"),
        ({"a": "x", "a/b": "y"}, ValueError, r"files\['a'\] is a file, so files\['a/b'\] cannot lie below it"),
        ({"./a/b/../c/d": "x", "a/c": "y"}, ValueError, r"files\['a/c'\] is a file, so files\['\./a/b/\.\./c/d'\]"),
        ({"a": "x", "a/../b": "y"}, ValueError, r"files\['a'\] is a file, so files\['a/\.\./b'\]"),
    ],
)
def test_impossible_files(make: str, files: dict[Any, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        MAKERS[make](files=files, limits=Limits(max_file=10, max_code=10))


@pytest.mark.parametrize("make", OF_CODE)
@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": bytes(8192), "b": bytes(10_000)}, r"2 files take 20480 bytes .* files\['b'\] with 10000, .* is 16384"),
        (dict.fromkeys("abcde", "x"), "5 files take 20480 bytes in pages of 4096"),
    ],
)
def test_files_that_the_workspace_cannot_hold(make: str, files: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MAKERS[make](files=files, limits=Limits(workspace="16k"))


@pytest.mark.parametrize("make", OF_CODE)
async def test_files_that_fill_the_workspace(make: str, image: str) -> None:
    files = {"a": bytes(12287), "b": "", "c/d": bytes(4096), "./a": bytes(8193)}
    options = {"image": image} if make == "docker" else {}
    async with MAKERS[make](files=files, limits=Limits(workspace="16k"), **options) as box:
        sizes = {entry.path: entry.size for entry in await box.list_files(recursive=True) if entry.kind == "file"}
    assert sizes == {"a": 8193, "b": 0, "c/d": 4096}


@pytest.mark.parametrize("make", MAKERS)
def test_possible_files(make: str) -> None:
    files = {"..a": "x", "a/../b": bytearray(b"x"), "./c": memoryview(b"x")}
    assert MAKERS[make](files=files).files == dict.fromkeys(files, b"x")


@pytest.mark.parametrize("make", MAKERS)
def test_files_are_data_and_not_part_of_the_key(make: str) -> None:
    with_file, without = MAKERS[make](files={"a": "x"}), MAKERS[make](files={})
    assert with_file.key == without.key
    assert with_file.clone().files == {"a": b"x"}


def test_boxes_of_two_engines_are_not_interchangeable() -> None:
    first, second = Engine(), Engine()
    assert DockerExecutor(engine=first).key == DockerExecutor(engine=first).clone().key
    assert DockerExecutor(engine=first).key != DockerExecutor(engine=second).key
    assert DockerExecutor().key == DockerExecutor().clone().key != DockerExecutor(engine=first).key


def test_a_dockerfile_is_not_an_image_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (tmp_path / "python", tmp_path / "other"):
        folder.mkdir()
        (folder / "Dockerfile").touch()
    monkeypatch.chdir(tmp_path)
    by_path, by_name = DockerExecutor(image=Path("python")), DockerExecutor(image="python")
    assert by_path.key != by_name.key
    assert DockerExecutor(image=Path("../") / tmp_path.name / "python").key == by_path.key
    assert by_path.clone().key == by_path.key != DockerExecutor(image=Path("other")).key
    with pytest.raises(ValueError, match=r"there is no Dockerfile in .*nothing"):
        DockerExecutor(image=Path("nothing"))


@pytest.mark.parametrize("make", OF_CODE)
@pytest.mark.parametrize("wrong", [{"memory": "256m"}, "256m", {}])
def test_limits_must_be_a_limits_object(make: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"limits must be a Limits, .* got (dict|str): "):
        MAKERS[make](limits=wrong)


SIZES = ("memory", "workspace", "tmp", "shm", "max_output", "max_file", "max_code")
COUNTS = ("pids", "max_inodes", "open_files")
AMOUNTS = ("cpus", "grace", "idle", "lifetime")


@pytest.mark.parametrize("name", [*SIZES, *COUNTS, *AMOUNTS])
def test_limits_of_the_wrong_type(name: str) -> None:
    values: list[Any]
    if name in SIZES:
        values, said = [None, True, 5e8, 64.0, b"64m", [64], np.float64(64), np.True_], ": a size is a whole number .*"
    elif name in COUNTS:
        values, said = [None, True, "128", "1k", 100.5, 128.0, np.float32(128)], " must be a whole number,"
    else:
        unit = "cores" if name == "cpus" else "seconds"
        values, said = [None, True, "1", "10m", 1j, [1.0], np.True_], f" must be a number of {unit},"
    for wrong in values:
        with pytest.raises(TypeError, match=rf"Limits\.{name}{said} got {type(wrong).__name__}: "):
            Limits(**{name: wrong})


@pytest.mark.parametrize("name", [*SIZES, *COUNTS, *AMOUNTS])
def test_limits_are_positive_and_finite(name: str) -> None:
    more: list[Any] = ["0", "0m"] if name in SIZES else [-0.5, math.inf, math.nan, 10**400] if name in AMOUNTS else []
    for wrong in (0, -1, *more):
        with pytest.raises(ValueError, match=rf"Limits\.{name} must be positive and finite, got "):
            Limits(**{name: wrong})


@pytest.mark.parametrize("name", SIZES)
def test_text_that_is_not_a_size(name: str) -> None:
    for wrong in ("", "m", "1x", "1.5g", "-1m", "512 mb"):
        with pytest.raises(ValueError, match=rf"Limits\.{name}: a size is a number of bytes, or text .* got {wrong!r}"):
            Limits(**{name: wrong})  # type: ignore[arg-type]


def test_a_share_of_a_core_too_small_to_be_a_limit() -> None:
    with pytest.raises(ValueError, match=r"Limits\.cpus must be at least 0\.01, .* got 1e-06"):
        Limits(cpus=1e-6)
    assert Limits(cpus=0.01).cpus == 0.01


async def test_limits_may_be_numbers_of_numpy() -> None:
    numbers: dict[str, Any] = {
        "memory": np.int64(640 << 20),
        "max_output": np.int32(2048),
        "open_files": np.uint16(100),
        "grace": np.float32(0.5),
        "idle": np.int64(60),
        "lifetime": Fraction(7200, 2),
    }
    limits = Limits(**numbers)
    assert limits == Limits(memory=640 << 20, max_output=2048, open_files=100, grace=0.5, idle=60, lifetime=3600)
    async with LocalExecutor(limits=limits) as box:
        code = "import resource; resource.getrlimit(resource.RLIMIT_NOFILE)[0]"
        assert (await box.python(code)).value == "100"


def test_equal_limits_are_equal_however_they_are_written() -> None:
    assert Limits(memory="512m", tmp="64M") == Limits(memory=512 << 20, tmp="65536k") == Limits()
    assert hash(Limits(memory="512m", idle=3600)) == hash(Limits())
    assert LocalExecutor(limits=Limits(memory="512m")).key == LocalExecutor(limits=Limits(memory=512 << 20)).key


@pytest.mark.parametrize("memory", ["64m", "96m", "256m", "512m", "8g"])
def test_the_folders_in_memory_follow_the_memory(memory: str) -> None:
    limits = Limits(memory=memory)
    assert isinstance(limits.memory, int)
    assert (limits.workspace, limits.tmp, limits.shm) == (limits.memory // 4, limits.memory // 8, limits.memory // 32)
    assert Limits(memory=memory, workspace="memory / 3").workspace == limits.memory // 3


@pytest.mark.parametrize("text", ["memory", "memory/0", "memory/", "memory/-2", "half"])
def test_a_part_of_the_memory_has_one_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"Limits\.tmp: a size is a number of bytes"):
        Limits(tmp=text)
