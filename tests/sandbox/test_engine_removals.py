"""A container is removed: the engine is asked again until it is gone."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from gymnast.sandbox import Engine

from .counterfeit import EngineAnswers, counterfeit


class Removals(EngineAnswers):
    """An engine with one container, which goes as `ends` says: "itself", "asked", "late" or "never"."""

    ends = "itself"
    requests: ClassVar[list[str]] = []
    there = True

    def do_GET(self) -> None:
        if self.path.endswith("/version"):
            self.answer(200, {"ApiVersion": "1.41"})
        elif Removals.there:
            limits = {"CpuPeriod": 100_000, "CpuQuota": 20_000}
            self.answer(200, {"State": {"Status": "running"}, "HostConfig": limits})
        else:
            self.answer(404, {"message": "No such container"})

    def do_POST(self) -> None:
        if self.path.endswith("/update"):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            Removals.requests.append(f"update {body['CpuQuota']}")
            self.answer(200, {"Warnings": None})
            return
        Removals.requests.append("wait")
        gone = Removals.ends == "itself" or (Removals.ends == "late" and "delete" in Removals.requests)
        if gone:
            Removals.there = False
            self.answer(200, {"StatusCode": 0})
        else:
            time.sleep(0.3)  # longer than the client waits
            self.answer(200, {"StatusCode": 0})

    def do_DELETE(self) -> None:
        Removals.requests.append("delete")
        if Removals.ends == "asked":
            Removals.there = False
            self.answer(204)
        else:
            self.answer(409, {"message": "removal is already in progress"})


@pytest.fixture
def removals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Removals]]:
    Removals.requests.clear()
    Removals.there = True
    monkeypatch.setattr("gymnast.sandbox.docker.client._ENDING_SECONDS", 0.1)
    with counterfeit(Removals, tmp_path, monkeypatch):
        yield Removals


@pytest.mark.parametrize(
    ("ends", "requests"),
    [
        ("itself", ["wait"]),
        ("asked", ["wait", "update 20000", "delete"]),
        ("late", ["wait", "update 20000", "delete", "wait"]),
    ],
)
async def test_a_container_that_ends_is_left_to_the_engine_and_one_that_does_not_is_removed(
    removals: type[Removals], ends: str, requests: list[str]
) -> None:
    removals.ends = ends
    async with Engine() as engine:
        for _ in range(2):  # the second time the container is gone
            await asyncio.wrap_future(engine.connection.remove("one"))
    assert removals.requests == requests


async def test_a_container_that_is_never_removed_is_named_and_tried_again_at_the_end(
    removals: type[Removals], caplog: pytest.LogCaptureFixture
) -> None:
    removals.ends = "never"
    async with Engine() as engine:
        await asyncio.wrap_future(engine.connection.remove("stuck"))
        assert "the container stuck is still there after 3 requests to remove it" in caplog.text
        removals.ends = "asked"
    assert not removals.there
    assert "the engine is closed" not in caplog.text
    removals.ends, removals.there = "never", True
    async with Engine() as engine:
        engine.connection.remove("stuck")
    assert "the engine is closed" in caplog.text
    assert caplog.text.rstrip().endswith("until they end: stuck")
