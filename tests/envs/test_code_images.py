"""CodeEnv whose rows name images, and the images of episodes to come."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from gymnast.envs import (
    CodeEnv,
    ConfigurationError,
    Environment,
    EnvironmentSource,
    RolloutEngine,
    ScriptedPolicy,
    episode_specs,
)
from gymnast.sandbox import (
    DEFAULT_IMAGE,
    BoxImage,
    DockerBox,
    DockerExecutor,
    Engine,
    ExecutorPool,
    LocalExecutor,
    ScriptedExecutor,
)
from gymnast.sandbox.docker.images import image_facts

from ..sandbox.boxes import LIMITS, eventually
from .test_code_env import answer, play, python, told

CHECKED = {
    "submit": ["done"],
    "checks": [{"run": "open('done').read() + open('/name').read()", "value": r"'yes, two\n'"}],
}


async def test_rows_name_the_image_of_all_boxes_of_an_episode(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {DEFAULT_IMAGE}\nRUN echo two > /name\nLABEL of={tmp_path}")
    image = BoxImage.dockerfile(tmp_path, network=False)
    rows: list[Mapping[str, Any]] = [
        {"prompt": "?", "image": image, **CHECKED},
        {"prompt": "?", "image": DEFAULT_IMAGE, **CHECKED},
        {"prompt": "?", **CHECKED},
    ]
    script = [python("import os; open('done', 'w').write('yes, '); os.path.exists('/name')"), answer()]
    async with ExecutorPool(DockerExecutor(engine=engine, limits=LIMITS), max_boxes=2, warm=0) as pool:
        episodes = await play(CodeEnv(pool), script, *rows)
        assert [episode.reward for episode in episodes] == [1.0, 0.0, 0.0]
        assert [told(episode)[0] for episode in episodes] == ["True", "False", "False"]
    facts = await image_facts(engine, image)
    await engine.call(engine.client.api.remove_image, facts.id, True)


@pytest.mark.parametrize(
    ("executor", "image", "message"),
    [
        (LocalExecutor(), "python:3.12-slim", "a LocalExecutor has no image to replace; use a DockerExecutor"),
        (DockerExecutor(), "./folder", "is a folder: .* give it as a Path"),
        (DockerExecutor(), 3, "image must be a name, a Dockerfile's folder as a Path, or a BoxImage, got 3"),
    ],
)
async def test_a_row_whose_image_cannot_be_had_stops_the_run(executor: Any, image: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        await play(CodeEnv(executor), [answer()], {"prompt": "?", "answer": 1, "image": image})


def test_a_pool_of_whole_boxes_is_refused() -> None:
    with pytest.raises(TypeError, match="the pool of a CodeEnv lends instances of Executor, not DockerBox"):
        CodeEnv(ExecutorPool(DockerBox()))


class Pictured(ScriptedExecutor):
    """A box of an image that is ready when `ready` says so."""

    def __init__(self) -> None:
        super().__init__([])
        self.image, self.prepared, self.ready = "", list[str](), asyncio.Event()

    @property
    def key(self) -> Hashable:
        return self.image

    def variant(self, *, image: Any) -> Self:
        twin = self.clone()
        twin.image = str(image)
        return twin

    async def prepare(self) -> None:
        self.prepared.append(self.image)
        await self.ready.wait()


async def test_images_of_later_episodes_are_prepared_from_the_beginning() -> None:
    executor = Pictured()
    environment = CodeEnv(ExecutorPool(executor, warm=0))
    rows = [{"prompt": "?", "answer": 42, "image": image} for image in ("a", "b", "a", 3, "c")]
    engine = RolloutEngine({"code": environment}, ScriptedPolicy([answer()]), max_concurrency=1)
    playing = asyncio.ensure_future(
        engine.run(episode_specs([{**row, "environment": "code"} for row in rows], group_size=1, seed=0))
    )
    assert await eventually(lambda: executor.prepared == ["a", "b", "3", "c"], 5)
    executor.ready.set()
    assert [episode.reward for episode in await playing] == [1.0] * 5
    assert len(executor.prepared) == 4
    await environment._pool.close()


async def test_each_prototype_prepares_its_own_rows() -> None:
    class Prepares(Environment):
        _prepared: Sequence[Mapping[str, Any]] = ()

        async def aprepare(self, tasks: Sequence[Mapping[str, Any]]) -> None:
            self._prepared = tasks

    first, second = Prepares(), Prepares()
    rows = [{"environment": "first"}, {"environment": "second"}, {"environment": "class"}, {}]
    await EnvironmentSource.of({"first": first, "second": second, "class": Prepares}).prepare(rows)
    assert (first._prepared, second._prepared) == (rows[:1], rows[1:2])
    await EnvironmentSource.of(first).prepare(rows)
    assert first._prepared == rows
