"""`on_failure`: drop, zero, retry or raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gymnast.envs import Calculator, ConfigurationError, Episode, EpisodeSpec, RolloutEngine, ScriptedPolicy

from ..sandbox.boxes import eventually
from .episodes import Log, Probe, play_one, specs


def failing_first(log: Log, failures: int) -> Callable[[], Probe]:
    return lambda: Probe(log, breaks="step" if len(log.made) < failures else "")


@pytest.mark.parametrize(
    ("on_failure", "failures", "attempts", "reward", "failed"),
    [
        ("drop", 1, 1, None, True),
        ("retry(1)", 1, 2, 1.0, False),
        ("retry( 3 )", 2, 3, 1.0, False),
        ("retry(2)", 9, 3, None, True),
        ("zero", 1, 1, 0.0, True),
        ("raise", 0, 1, 1.0, False),
    ],
)
async def test_on_failure(on_failure: str, failures: int, attempts: int, reward: float | None, failed: bool) -> None:
    log = Log()
    episode = await play_one(failing_first(log, failures), ["x"], on_failure=on_failure)
    assert (episode.attempts, episode.reward, episode.stop.is_failure) == (attempts, reward, failed)
    assert (episode.failure is not None) == failed
    assert [str(item) for item in episode.retried] == ["step: ZeroDivisionError: in step"] * (attempts - 1)
    assert log.closed == [1] * attempts


async def test_a_retry_samples_anew_from_the_same_start() -> None:
    seeds: list[tuple[int, int]] = []

    class Notes(ScriptedPolicy):
        def begin(self, spec: EpisodeSpec, messages: Any, tools: Any) -> Any:
            seeds.append((spec.task.seed, spec.seed))
            return super().begin(spec, messages, tools)

    async def play() -> Episode:
        engine = RolloutEngine(failing_first(Log(), 2), Notes(["x"]), on_failure="retry(2)")
        [episode] = await engine.run(specs(1))
        return episode

    episode = await play()
    assert len({environment for environment, _ in seeds}) == 1
    assert len({sampling for _, sampling in seeds}) == 3
    assert seeds[0][1] == specs(1)[0].seed
    assert episode.spec.seed == seeds[-1][1]  # the same tokens can be sampled again
    first, seeds[:] = [*seeds], []
    await play()
    assert seeds == first


@pytest.mark.parametrize("on_failure", ["ignore", "retry", "retry(0)", "retry(-1)", "retry(x)", ""])
def test_a_bad_on_failure_is_refused(on_failure: str) -> None:
    with pytest.raises(
        ValueError, match=r"on_failure must be 'drop', 'retry\(n\)' with n >= 1, 'zero' or 'raise', got"
    ):
        RolloutEngine(Calculator(), ScriptedPolicy([]), on_failure=on_failure)


async def test_a_configuration_error_stops_the_run() -> None:
    log = Log()
    wrong = ConfigurationError("the template has no tools")
    engine = RolloutEngine(
        lambda: Probe(log, breaks="reset", error=wrong), ScriptedPolicy(["x"]), on_failure="retry(5)"
    )
    with pytest.raises(ConfigurationError, match="the template has no tools"):
        await engine.run(specs(3))
    # A thread closes an environment that it was still making.
    assert await eventually(lambda: set(log.closed) == {1}, 10)
