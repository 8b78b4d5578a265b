"""The reaper: which containers it takes for abandoned, and that it removes these and no others."""

from __future__ import annotations

import pytest

from gymnast.sandbox import Engine, reap
from gymnast.sandbox import owner as owner_module
from gymnast.sandbox.container import BoxOptions, container_config

from .boxes import LIMITS


async def test_the_reaper_removes_what_dead_owners_left_and_nothing_else(image: str, engine: Engine) -> None:
    dead = owner_module.labels(3600) | {f"{owner_module.LABEL}.pid-started": "1"}
    living = owner_module.labels(3600)
    made = {}
    for name, labels in (("dead", dead), ("living", living)):
        config = container_config(BoxOptions(image=image, limits=LIMITS), image, labels, [])
        made[name] = (
            await engine.call(engine.client.api.create_container_from_config, config, f"gymnast-test-{name}")
        )["Id"]
    try:
        assert await reap(engine) == ["gymnast-test-dead"]
        assert [
            found["Id"] for found in await engine.call(engine.client.containers) if found["Id"] in made.values()
        ] == [made["living"]]
    finally:
        await engine.remove(made["living"])


@pytest.mark.parametrize(
    ("change", "abandoned"),
    [
        ({}, False),
        ({"boot": "another"}, True),
        ({"host": "another", "boot": "another"}, False),
        ({"namespace": "another", "pid": "1"}, False),
        ({"pid": "4194303"}, True),
        ({"created": "1000"}, True),
        ({"created": "nonsense"}, False),
    ],
)
def test_who_is_dead(change: dict[str, str], abandoned: bool) -> None:
    labels = owner_module.labels(3600) | {f"{owner_module.LABEL}.{key}": value for key, value in change.items()}
    assert owner_module.is_abandoned(labels) is abandoned
