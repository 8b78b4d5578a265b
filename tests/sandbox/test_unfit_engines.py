"""Engines that cannot be used: one that discards a limit, and Podman."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from gymnast.sandbox import DockerExecutor, Engine, EngineError

from .counterfeit import CounterfeitEngine, EngineAnswers


class Grudging(EngineAnswers):
    """An engine that does not hold one limit."""

    version: ClassVar[dict[str, object]] = {"ApiVersion": "1.41"}
    removed: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        if self.path.endswith("/version"):
            self.answer(200, Grudging.version)
        elif "/images/" in self.path:
            self.answer(200, {"Id": "sha256:1", "Size": 1})
        elif self.path.endswith("/info") or "/containers/json" in self.path:
            self.answer(200, {"SystemTime": "2026-01-01T00:00:00Z"} if self.path.endswith("/info") else [])
        else:
            self.answer(404 if Grudging.removed else 200, {"State": {"Status": "created"}, "message": "none"})

    def do_POST(self) -> None:
        self.answer(201, {"Id": "one", "Warnings": ["Your kernel does not support PIDs limit. PIDs limit discarded."]})

    def do_DELETE(self) -> None:
        Grudging.removed.append(self.path)
        self.answer(204)


@pytest.fixture
def grudging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Grudging]]:
    Grudging.removed.clear()
    with CounterfeitEngine(f"{tmp_path}/grudging.sock", Grudging) as server:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/grudging.sock")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield Grudging
        server.shutdown()
        thread.join()


async def test_a_limit_that_the_engine_discards_is_an_error(grudging: type[Grudging]) -> None:
    with pytest.raises(EngineError, match=r"does not hold a limit: .* PIDs limit discarded.*best_effort=True"):
        await DockerExecutor(image="any").start()
    assert len(grudging.removed) == 1


async def test_podman_is_refused_by_name(grudging: type[Grudging], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grudging, "version", {"ApiVersion": "1.41", "Components": [{"Name": "Podman Engine"}]})
    with pytest.raises(EngineError, match="this engine is Podman"):
        await Engine().open()
