"""What holds for hosts without a network or a cluster."""

from __future__ import annotations

import asyncio
import pickle
import threading

import pytest

from gymnast import __version__
from gymnast.cluster import RayEnvironments
from gymnast.cluster.hosting.caught_errors import CaughtError
from gymnast.cluster.hosting.link import check_version
from gymnast.cluster.hosting.recipes import pack
from gymnast.cluster.on_ray.rollout_workers import WorkerHost
from gymnast.envs import (
    Calculator,
    ConfigurationError,
    EnvironmentSource,
    EpisodeLimits,
    ScriptedPolicy,
    ToolEnv,
    episode_specs,
    tool,
    tool_call,
)

from .hosted import noted_class

CALLS: list[str] = []
LOCK = threading.Lock()  # which cannot be pickled


def note(text: str) -> str:
    """Note a text.

    Args:
        text: The text.
    """
    with LOCK:
        CALLS.append(text)
    return text


async def test_closing_an_episode_ends_its_play_and_closes_its_environment() -> None:
    noted = noted_class()
    host = WorkerHost(EnvironmentSource.of(noted))
    reference = asyncio.sleep(0, result=pack((ScriptedPolicy(["go"]), None), "the policy"))
    [spec] = episode_specs([{}], group_size=1, seed=0)
    playing = asyncio.create_task(host.call("play", 7, (0, reference), None, spec, EpisodeLimits()))
    await asyncio.wait_for(noted.stepping.wait(), 20)
    assert await host.call("close", 7) is None
    assert noted.closed.is_set()
    ended = await playing
    assert isinstance(ended, CaughtError)
    assert ended.name == "CancelledError"


def test_another_version_of_gymnast_is_refused() -> None:
    check_version("a host", __version__)
    with pytest.raises(ConfigurationError, match=r"a host has gymnast 9\.9 \(here .+\); install the same version"):
        check_version("a host", "9.9")


def test_nothing_starts_ray_by_itself() -> None:
    with pytest.raises(ConfigurationError, match=r"call ray\.init\(\) first, .* or ray\.init\(address='auto'\)"):
        RayEnvironments(Calculator)


def test_a_marked_copy_of_a_function_is_made_again_from_the_function_of_its_module() -> None:
    marked = tool(timeout=5.0)(tool(final=True)(note))
    environment = pickle.loads(pack(ToolEnv([marked]), "the environment"))
    environment.reset(options={"task": {"prompt": "go"}})
    assert environment.step(tool_call("note", text="a")).terminated
    assert (CALLS, environment.tools["note"].timeout) == (["a"], 5.0)
