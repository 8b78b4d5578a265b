"""`gymnast play`: one episode, with you or a script in the model's place."""

from __future__ import annotations

from typing import Annotated

import typer

from ..terminal.completions import players
from ..terminal.exits import FAULTS
from ..terminal.options import MAX_TURNS, AsJSON, EnvironmentReference, MaxTurns, Seed, Tasks


def play(
    env: EnvironmentReference,
    tasks: Tasks = None,
    row: Annotated[int, typer.Option(min=0, help="Which of the rows to play, from 0.")] = 0,
    seed: Seed = 0,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="SCRIPT",
            help="file.py:name of a list of answers, or of a function of the messages so far (and of the tools). "
            "By default you answer.",
            autocompletion=players,
        ),
    ] = None,
    max_turns: MaxTurns = MAX_TURNS,
    as_json: AsJSON = False,
) -> None:
    """Play one episode: you are the model, or a script is.

    Answer with text, or with calls such as add(a=1, b=2); separate several by semicolons.
    """
    from ...envs import EpisodeLimits, RolloutEngine, StopReason
    from ..arguments.references import load_environment, load_policy
    from ..arguments.rows import rows_to_play
    from ..terminal.human import HumanPolicy, ShownPolicy, show_episode
    from ..terminal.output import console, print_json

    environment = load_environment(env)
    rows = rows_to_play(environment, tasks, count=row + 1, seed=seed)
    out = console(stderr=as_json)
    player = HumanPolicy(out) if policy is None else load_policy(policy)
    engine = RolloutEngine(environment, ShownPolicy(player, out), limits=EpisodeLimits(max_turns=max_turns or None))
    [episode] = engine.play(rows[row:], seed=seed)
    show_episode(episode, out)
    if episode.stop is StopReason.MAX_TURNS:
        out.print(f"the episode was cut after {max_turns} turns; --max-turns sets another bound, 0 lifts it")
    if as_json:
        print_json(episode.to_json())
    if episode.failure is not None:
        raise typer.Exit(FAULTS)
