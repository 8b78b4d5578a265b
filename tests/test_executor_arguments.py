"""What users pass to executors: a mistake is named where it is made, and no option does nothing in silence."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gymnast.sandbox import (
    DockerExecutor,
    ExecutionResult,
    Limits,
    LocalExecutor,
    Recording,
    ScriptedExecutor,
    Status,
)


def scripted(**options: Any) -> ScriptedExecutor:
    return ScriptedExecutor([ExecutionResult(status=Status.OK)], **options)


MAKERS: dict[str, Callable[..., Any]] = {"docker": DockerExecutor, "local": LocalExecutor, "scripted": scripted}


@pytest.mark.parametrize("make", [DockerExecutor, LocalExecutor])
@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"env": {"N": 3}}, TypeError, "both of them str, got 'N': 3"),
        ({"env": {3: "N"}}, TypeError, "both of them str, got 3: 'N'"),
        ({"env": {"": "x"}}, ValueError, "a name in env is not empty .* got ''"),
        ({"env": {"A=B": "x"}}, ValueError, "a name in env .* got 'A=B'"),
        ({"env": {"A\0": "x"}}, ValueError, "a name in env .* got 'A"),
        ({"env": {"A": "x\0"}}, ValueError, r"env\['A'\] holds a NUL"),
        ({"preload": "numpy"}, TypeError, "a list of modules' names, .* got 'numpy'"),
        ({"preload": [3]}, TypeError, r"a list of modules' names, .* got \[3\]"),
        ({"preload": ["numpy", "import os"]}, ValueError, "got 'import os'"),
        ({"start_timeout": 0}, ValueError, "start_timeout must be a positive number"),
    ],
)
def test_what_cannot_be(make: Callable[..., Any], options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make(**options)


@pytest.mark.parametrize("make", MAKERS)
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
    ],
)
def test_files_that_cannot_be(make: str, files: dict[Any, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        MAKERS[make](files=files, limits=Limits(max_file=10, max_code=10))


@pytest.mark.parametrize("make", MAKERS)
def test_files_that_can_be(make: str) -> None:
    files = {"..a": "x", "a/../b": bytearray(b"x"), "./c": memoryview(b"x")}
    assert MAKERS[make](files=files).files == dict.fromkeys(files, b"x")


def test_a_dockerfile_is_no_image_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    by_path, by_name = DockerExecutor(image=Path("python")), DockerExecutor(image="python")
    assert by_path.key != by_name.key
    assert DockerExecutor(image=Path("../") / tmp_path.name / "python").key == by_path.key
    monkeypatch.chdir("/")
    assert by_path.clone().key == by_path.key != DockerExecutor(image=Path("python")).key


@pytest.mark.parametrize("options", [{}, {"image": Path("folder")}])
def test_what_has_no_registry_is_not_always_fetched(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"pull='always' fetches an image from its registry, and .* on this machine"):
        DockerExecutor(pull="always", **options)
    assert DockerExecutor(image="python:3.12-slim", pull="always").pull == "always"


def test_a_recording_has_its_own_limits() -> None:
    with pytest.raises(ValueError, match="leave out limits="):
        ScriptedExecutor(Recording(), limits=Limits())


def test_limits_that_no_script_can_hold_are_named_once() -> None:
    with pytest.warns(UserWarning, match="ignores them: memory, max_output"):
        box = scripted(limits=Limits(memory="640m", max_output="2k", max_file="8m"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert box.clone().key == box.key
        scripted(limits=Limits(max_file=100, max_code=100))
