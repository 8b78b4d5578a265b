"""The reaper removes abandoned containers and no others."""

from __future__ import annotations

import asyncio
import platform
from pathlib import Path
from typing import ClassVar

import pytest

from gymnast.sandbox import Engine, reap
from gymnast.sandbox.docker import labels as owner_module
from gymnast.sandbox.docker.options import BoxOptions, container_config

from .boxes import LIMITS
from .counterfeit import EngineAnswers, counterfeit


@pytest.fixture(autouse=True)
def no_other_process_reaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process its own host name: other processes reap too, but not the containers of another host."""
    monkeypatch.setattr(platform, "node", lambda: "the-host-of-this-test")


async def test_the_reaper_removes_what_dead_owners_left_and_nothing_else(image: str, engine: Engine) -> None:
    dead = owner_module.labels(3600) | {f"{owner_module.LABEL}.pid-started": "1"}
    living = owner_module.labels(3600)
    made = {}
    for name, labels in (("dead", dead), ("living", living)):
        config = container_config(BoxOptions(limits=LIMITS), image, labels, [])
        made[name] = (
            await engine.call(engine.client.api.create_container_from_config, config, f"gymnast-test-{name}")
        )["Id"]
    try:
        assert await reap(engine) == ["gymnast-test-dead"]
        assert [
            found["Id"] for found in await engine.call(engine.client.containers) if found["Id"] in made.values()
        ] == [made["living"]]
    finally:
        await asyncio.wrap_future(engine.connection.remove(made["living"]))


@pytest.mark.parametrize(
    ("change", "state", "age", "abandoned"),
    [
        ({}, "running", 0, False),
        ({}, "exited", 3000, False),  # its owner removes it
        ({}, "created", 10, False),
        ({}, "created", 1e6, False),  # the clock has jumped while its owner starts it
        ({"pid": "4194303"}, "created", 10, True),
        ({"namespace": "another"}, "created", 1000, True),
        ({"boot": "another"}, "running", 0, False),  # another machine of this name
        ({"boot": "another"}, "paused", 0, False),
        ({"boot": "another"}, "created", 10, False),
        ({"boot": "another"}, "created", 1000, True),
        ({"boot": "another"}, "exited", 0, True),  # this machine was restarted
        ({"host": "another", "boot": "another"}, "exited", 0, False),
        ({"namespace": "another", "pid": "1"}, "running", 0, False),
        ({"pid": "4194303"}, "running", 0, True),
        ({"pid": "4194303"}, "exited", 1e6, True),
        ({}, "running", 1e6, False),  # the engine's clock has jumped
        ({}, "exited", 1e6, False),
        ({"host": "another"}, "running", 3700, True),
        ({"boot": "another"}, "running", 3700, True),
        ({"namespace": "another"}, "running", 3700, True),
        ({"host": "another"}, "running", 3500, False),
        ({"lifetime": "nonsense"}, "running", 1e6, False),
    ],
)
def test_which_owners_are_dead(change: dict[str, str], state: str, age: float, abandoned: bool) -> None:
    labels = owner_module.labels(3600) | {f"{owner_module.LABEL}.{key}": value for key, value in change.items()}
    assert owner_module.is_abandoned(labels, state=state, age=age) is abandoned


async def test_a_running_box_may_be_that_of_another_machine_of_the_same_name(image: str, engine: Engine) -> None:
    labels = owner_module.labels(3600) | {f"{owner_module.LABEL}.boot": "another"}
    config = container_config(BoxOptions(limits=LIMITS), image, labels, [])
    config["HostConfig"]["AutoRemove"] = False  # as if the machine had lost power
    launched = await engine.launch("gymnast-test-elsewhere", config)
    try:
        assert "gymnast-test-elsewhere" not in await reap(engine)
        launched.socket.close()  # which ends it
        await engine.call(engine.client.api.wait, launched.container)
        assert "gymnast-test-elsewhere" in await reap(engine)
    finally:
        launched.socket.close()
        await asyncio.wrap_future(engine.connection.remove(launched.container))


# --- an engine that does not remove everything ------------------------------------------------------------------


class Answers(EngineAnswers):
    """An engine with three abandoned containers and two of a living owner; it refuses to remove the first."""

    removed: ClassVar[set[str]] = set()

    def do_GET(self) -> None:
        if self.path.endswith("/version"):
            self.answer(200, {"ApiVersion": "1.41"})
            return
        if self.path.endswith("/info"):
            self.answer(200, {"SystemTime": "2001-09-09T01:46:40.123456789Z"})  # its clock is years behind
            return
        if "/images/json" in self.path or "/volumes" in self.path:
            self.answer(200, [] if "/images" in self.path else {"Volumes": None})
            return
        if self.path.endswith("/json") and "/containers/json" not in self.path:
            number = self.path.split("/")[-2]
            there = number not in self.removed
            self.answer(200 if there else 404, {"State": {"Status": "created"}} if there else {"message": "none"})
            return
        labels = owner_module.labels(3600)
        dead = labels | {f"{owner_module.LABEL}.pid-started": "1"}
        elsewhere = labels | {f"{owner_module.LABEL}.namespace": "another"}
        common = {"State": "exited", "Created": 1e9}
        self.answer(
            200,
            [
                {"Id": "1" * 64, "Names": ["/stuck"], "Labels": dead, **common},
                {"Id": "2" * 64, "Names": None, "Labels": dead, **common},
                {"Id": "3" * 64, "Names": ["/forgotten"], "Labels": elsewhere, "State": "created", "Created": 1000},
                {"Id": "4" * 64, "Names": ["/living"], "Labels": labels, **common},
                {"Id": "5" * 64, "Names": ["/old"], "Labels": labels, "State": "running", "Created": 1000},
            ],
        )

    def do_DELETE(self) -> None:
        if "1" * 64 in self.path:
            self.answer(500, {"message": "device or resource busy"})
        else:
            self.removed.add(self.path.partition("?")[0].split("/")[-1])
            self.answer(204)


async def test_a_container_that_cannot_be_removed_does_not_protect_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with counterfeit(Answers, tmp_path, monkeypatch):
        async with Engine() as engine:
            assert await reap(engine) == ["2" * 12, "forgotten"]
    assert [record.getMessage() for record in caplog.records if "reaper" in record.name] == [
        "the abandoned container stuck was not removed: the engine refused: device or resource busy"
    ]
