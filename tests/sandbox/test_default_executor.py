"""The executor for a machine that has Docker, or bubblewrap, or neither."""

from __future__ import annotations

import logging

import pytest

from gymnast.envs import CodeEnv, RolloutEngine, ScriptedPolicy, episode_specs, tool_call
from gymnast.sandbox import (
    BwrapBox,
    BwrapExecutor,
    DockerBox,
    DockerExecutor,
    EngineError,
    Limits,
    default_box,
    default_executor,
)

LIMITS = Limits(memory="128m")


def test_docker_goes_first(image: str) -> None:
    executor = default_executor(limits=LIMITS, env={"A": "1"})
    assert executor.key == DockerExecutor(limits=LIMITS, env={"A": "1"}).key
    assert default_box(limits=LIMITS).key == DockerBox(limits=LIMITS).key


@pytest.mark.usefixtures("bubblewrap")
def test_bubblewrap_makes_the_boxes_where_no_engine_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    with caplog.at_level(logging.INFO, "gymnast"):
        assert default_executor(limits=LIMITS).key == BwrapExecutor(limits=LIMITS).key
        assert default_box(limits=LIMITS).key == BwrapBox(limits=LIMITS).key
    assert "boxes are made by bubblewrap: no container engine answers at unix:///nowhere" in caplog.text
    with pytest.raises(TypeError, match="BwrapExecutor has no 'image'"):
        default_executor(image="python:3.12")


def test_both_reasons_are_given_where_there_is_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EngineError, match=r"(?s)answers at unix:///nowhere.*install docker\.io.*bubblewrap is missing"):
        default_executor()


async def test_an_environment_without_an_executor_takes_it(image: str) -> None:
    one, other = CodeEnv(), CodeEnv()
    assert one._pool is other._pool  # so copies share their boxes
    try:
        script = ScriptedPolicy([tool_call("python", code="6 * 7"), tool_call("final_answer", answer="42")])
        [episode] = await RolloutEngine(one, script).run(
            episode_specs([{"prompt": "6 * 7?", "answer": 42}], group_size=1, seed=0)
        )
        assert episode.reward == 1.0
    finally:
        await one._pool.close()
