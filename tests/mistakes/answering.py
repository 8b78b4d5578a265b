"""The answer to a mistake: the error or the warning that a newcomer's lines cause."""

from __future__ import annotations

import linecache
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any

import pytest

from gymnast.envs import Episode, EpisodeLimits, Rewards, RolloutEngine, ScriptedPolicy

Mistake = tuple[str, ...]
"""What was typed, then all that the answer must name: what was got, what was expected, what to do."""


def play(environment: Any, *answers: Any, rewards: Sequence[Any] = ()) -> Episode:
    """Play one episode, whose failure is raised."""
    policy = ScriptedPolicy(answers or ("an answer",))
    engine = RolloutEngine(
        environment, policy, rewards=Rewards(rewards), limits=EpisodeLimits(max_turns=3), on_failure="raise"
    )
    return engine.play([{"prompt": "a question"}])[0]


def mistakes(*table: Mistake) -> pytest.MarkDecorator:
    """Return the parameters of a test that takes a `mistake`."""
    return pytest.mark.parametrize("mistake", table, ids=[" ".join(row[0].split())[:60] for row in table])


def check_answer(mistake: Mistake, module: Any, **names: Any) -> None:
    """Check that an error or a warning of the typed lines names all; the lines see the public names of a module."""
    typed, *expected = mistake
    typed, place = textwrap.dedent(typed), f"<{typed}>"
    linecache.cache[place] = (len(typed), None, typed.splitlines(keepends=True), place)  # for who reads the source
    scope = {**vars(module), "__name__": "typed", "play": play, **names}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(compile(typed, place, "exec"), scope)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        else:
            answer = "\n".join(str(warning.message) for warning in caught)
    assert answer, f"there was no answer to:\n{typed}"
    missing = [text for text in expected if text not in answer]
    assert not missing, f"the answer does not name {missing}:\n{answer}"
