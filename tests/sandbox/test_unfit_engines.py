"""Engines that cannot be used: one that does not hold a limit, Podman, and one behind TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from gymnast.sandbox import DockerExecutor, Engine, EngineError

from .counterfeit import EngineAnswers, counterfeit


class Grudging(EngineAnswers):
    """An engine that does not hold one limit."""

    limits: ClassVar[dict[str, object]] = {}  # the engine's facts about them
    version: ClassVar[dict[str, object]] = {"ApiVersion": "1.41"}
    warnings: ClassVar[list[str]] = ["Your kernel does not support PIDs limit. PIDs limit discarded."]
    removed: ClassVar[list[str]] = []
    state: ClassVar[str] = "created"  # of the container

    def do_GET(self) -> None:
        if self.path.endswith("/version"):
            self.answer(200, Grudging.version)
        elif "/images/" in self.path:
            self.answer(200, {"Id": "sha256:1", "Size": 1})
        elif self.path.endswith("/info"):
            self.answer(200, {"SystemTime": "2026-01-01T00:00:00Z", **Grudging.limits})
        elif "/containers/json" in self.path:
            self.answer(200, [])
        else:
            container = {"State": {"Status": Grudging.state}, "HostConfig": {"CpuPeriod": 1, "CpuQuota": 1}}
            self.answer(404 if Grudging.removed else 200, {**container, "message": "none"})

    def do_POST(self) -> None:
        if "/wait" in self.path:
            Grudging.removed.append("by the engine itself")
        self.answer(201, {"Id": "one", "Warnings": Grudging.warnings})

    def do_DELETE(self) -> None:
        Grudging.removed.append(self.path)
        self.answer(204)


@pytest.fixture
def grudging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Grudging]]:
    Grudging.removed.clear()
    with counterfeit(Grudging, tmp_path, monkeypatch):
        yield Grudging


async def test_a_limit_that_the_engine_discards_is_an_error(grudging: type[Grudging]) -> None:
    with pytest.raises(EngineError, match=r"does not hold a limit: .* PIDs limit discarded.*best_effort=True"):
        await DockerExecutor(image="any").start()
    assert len(grudging.removed) == 1


@pytest.mark.parametrize(
    ("state", "asks"), [("running", True), ("paused", True), ("created", True), ("exited", False), ("removing", False)]
)
async def test_a_silent_box_that_is_ending_is_left_to_the_engine(
    grudging: type[Grudging], monkeypatch: pytest.MonkeyPatch, state: str, asks: bool
) -> None:
    """A request to remove it at that moment can leave it half removed for ever."""
    monkeypatch.setattr(grudging, "state", state)
    async with Engine() as engine:
        await asyncio.wrap_future(engine.connection.remove("one", is_silent=True))
    [removal] = grudging.removed
    assert (removal != "by the engine itself") == asks


# Rootless, on a machine with control groups of version 1. Its answer to the creation of a container has no warning.
WITHOUT_GROUPS = {
    "CgroupDriver": "none", "MemoryLimit": False, "SwapLimit": False, "CpuCfsQuota": False, "PidsLimit": False,
}  # fmt: skip


async def test_an_engine_without_control_groups_starts_no_box(
    grudging: type[Grudging], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grudging, "limits", WITHOUT_GROUPS)
    monkeypatch.setattr(grudging, "warnings", [])
    with pytest.raises(EngineError, match=r"memory, swap, cpus, pids \(.*: none\).*rootless.*best_effort=True"):
        await DockerExecutor(image="any").start()
    assert not grudging.removed  # no container was made


async def test_limits_that_are_not_held_can_be_accepted(
    grudging: type[Grudging], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(grudging, "limits", WITHOUT_GROUPS)
    async with Engine() as engine:
        for _ in range(2):
            with pytest.raises(EngineError, match="while it was started"):  # behind the limits
                await DockerExecutor(image="any", engine=engine, best_effort=True).start()
    warnings = [record.getMessage() for record in caplog.records if "the engine warns" in record.getMessage()]
    assert len(warnings) == len(set(warnings)) == 2, warnings  # each of them once


async def test_podman_is_refused_by_name(grudging: type[Grudging], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grudging, "version", {"ApiVersion": "1.41", "Components": [{"Name": "Podman Engine"}]})
    with pytest.raises(EngineError, match="this engine is Podman"):
        await Engine().open()


@pytest.mark.parametrize("name", ["DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"])
async def test_an_engine_behind_tls_is_refused(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(name, str(tmp_path))  # which holds no certificates
    with pytest.raises(EngineError, match=rf"not over TLS, which {name} asks for: unset it") as caught:
        await Engine().open()
    assert type(caught.value) is EngineError
