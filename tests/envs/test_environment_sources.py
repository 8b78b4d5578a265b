"""Where an engine's environments come from."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from gymnasium.wrappers import TimeLimit

from gymnast.envs import (
    Calculator,
    Environment,
    EnvironmentSource,
    Message,
    RolloutEngine,
    ScriptedPolicy,
    StepResult,
    StopReason,
    episode_specs,
)

from .episodes import ADD, ANSWER, ROW, Log, Probe, play_one, specs


def make_calculator() -> Calculator:
    return Calculator()


@pytest.mark.parametrize(
    "environment",
    [
        Calculator(),
        TimeLimit(Calculator(), 5),
        gymnasium.make("gymnast/Calculator-v0"),
        Calculator,
        make_calculator,
        "gymnast/Calculator-v0",
        "gymnast.envs:gymnast/Calculator-v0",
        {"arithmetic": Calculator, "other": Probe},
    ],
    ids=["prototype", "wrapped", "made", "class", "function", "id", "module and id", "dict"],
)
async def test_sources_of_environments(environment: Any) -> None:
    engine = RolloutEngine(environment, ScriptedPolicy([ADD, ANSWER]))
    episodes = await engine.run(specs(3, environment="arithmetic"))
    assert [episode.failure for episode in episodes] == [None] * 3
    assert [episode.reward for episode in episodes] == [1.0] * 3


async def test_copies_of_a_prototype_share_its_arguments() -> None:
    log = Log()
    prototype = Probe(log)
    await RolloutEngine(prototype, ScriptedPolicy(["x"])).run(specs(3))
    assert prototype.closed == 0  # its maker closes it
    copies = [environment for environment in log.made if environment is not prototype]
    assert len({id(copy) for copy in copies}) == len(copies) >= 3
    assert [copy.closed for copy in copies] == [1] * len(copies)


async def test_the_row_chooses_the_environment() -> None:
    class Other(Environment):
        async def astep(self, action: Message) -> StepResult:
            return StepResult([], 7.0, True, False, {})

    engine = RolloutEngine({"arithmetic": Calculator(), "other": Other}, ScriptedPolicy([ANSWER]))
    rows = [{**ROW, "environment": name} for name in ("other", "arithmetic", "third", ["other"])] + [ROW]
    episodes = await engine.run(episode_specs(rows, group_size=1, seed=0))
    assert [episode.reward for episode in episodes] == [7.0, 1.0, None, None, None]
    messages = [episode.failure.message for episode in episodes if episode.failure is not None]
    column = "the row's 'environment' column must name one of ['arithmetic', 'other'], got "
    assert messages == [column + "'third'", column + "['other']", column + "None"]


class Unrecorded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that does not record its arguments."""


class Raw(gymnasium.Env[Any, Any]):
    """No `Environment`, so it cannot be copied."""


@pytest.mark.parametrize(
    ("environment", "error", "message"),
    [
        (None, TypeError, "environment must be an Environment, an Environment class, a function .* got None"),
        (3, TypeError, "environment must be an Environment"),
        (dict, TypeError, "environment must be an Environment"),
        ({}, ValueError, "environment is an empty dict"),
        ({"a": 3}, TypeError, "environment must be an Environment"),
        (Unrecorded(Calculator()), TypeError, r"Unrecorded cannot be copied.*environment=lambda: Unrecorded\(\.\.\.\)"),
        (Raw(), TypeError, "Raw cannot be copied"),
        ("gymnast/Calculater-v0", gymnasium.error.Error, "Calculat"),
        ("gymnast.nothing:gymnast/Calculator-v0", ModuleNotFoundError, "nothing"),
    ],
)
def test_a_wrong_environment_is_refused_at_once(environment: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RolloutEngine(environment, ScriptedPolicy([]))


@pytest.mark.parametrize(
    ("environment", "meant", "cause"),
    [
        ("Cartpole", "near names are 'CartPole-v1', 'CartPole-v0'", "Did you mean: `CartPole`"),
        ("gymnast.envs:Multiplication", "`gymnast envs` lists the installed ones", "`Multiplication` doesn't exist"),
        ("multiplication:Multiplication", "`gymnast envs` lists", "No module named 'multiplication'"),
    ],
)
def test_the_name_of_a_class_is_refused_as_an_id(environment: str, meant: str, cause: str) -> None:
    with pytest.raises(gymnasium.error.NameNotFound) as caught:
        RolloutEngine(environment, ScriptedPolicy([]))
    said = f"no installed package offers an environment {environment!r}, and it is no Gymnasium id; "
    assert str(caught.value).startswith(said + meant)
    assert str(caught.value).endswith(f"; or pass the class itself: environment={environment.rpartition(':')[2]}")
    assert cause in str(caught.value.__cause__)


async def test_a_factory_must_make_fresh_environments() -> None:
    log = Log()
    one = Probe(log)
    episodes = await RolloutEngine(lambda: one, ScriptedPolicy(["x"])).run(specs(3))
    failures = [episode.failure for episode in episodes if episode.failure is not None]
    assert len(failures) == 2
    assert "the environment factory returned the same Probe again" in failures[0].message
    assert one.closed == 1


async def test_any_gymnasium_environment_of_messages_is_accepted() -> None:
    class Plain(gymnasium.Env[Any, Any]):
        """Written against Gymnasium alone."""

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return [{"role": "user", "content": options["task"]["question"]}], {}

        def step(self, action: Any) -> Any:
            return [], 2.0, True, False, {}

    episode = await play_one(Plain, ["x"])
    assert (episode.failure, episode.reward, episode.stop) == (None, 2.0, StopReason.ENV_TERMINATED)
    assert episode.prompt[0].get("content") == ROW["question"]


def test_state_that_copies_would_lose_is_refused() -> None:
    environment = Calculator()
    environment.difficulty = 3  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"Calculator: difficulty was set after the environment was made"):
        EnvironmentSource.of(environment)
    environment = Calculator()
    environment.tool_timeout = 3.0
    with pytest.raises(ValueError, match=r"Calculator: tool_timeout was set after the environment was made"):
        EnvironmentSource.of(environment)
    used = Calculator()  # attributes that a reset or a step sets are not configuration
    used.reset(seed=0)
    EnvironmentSource.of(used)
