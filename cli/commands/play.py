"""`gymnast play`: one episode, with a model, or with you or a script in its place."""

from __future__ import annotations

from typing import Annotated

import typer

from ..terminal.completions import players
from ..terminal.exits import FAULTS, CommandError
from ..terminal.options import MAX_TURNS, AsJSON, EnvironmentReference, MaxTokens, MaxTurns, Seed, Tasks, ToolFormat


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
    model: Annotated[str | None, typer.Option(help="A model that plays: a name of the Hub, or a folder.")] = None,
    tool_format: ToolFormat = None,
    max_tokens: MaxTokens = None,
    max_turns: MaxTurns = MAX_TURNS,
    as_json: AsJSON = False,
) -> None:
    """Play one episode: you are the model, or a script or a model plays.

    Answer with text, or with calls such as add(a=1, b=2); separate several by semicolons.
    """
    from ...envs import EpisodeLimits, RolloutEngine, StopReason
    from ...envs.engine.rollout_engine import episode_specs
    from ..arguments.references import load_environment, load_policy
    from ..arguments.rows import rows_to_play
    from ..terminal.human import HumanPolicy, ShownPolicy, show_episode
    from ..terminal.output import console, print_json

    if policy is not None and model is not None:
        raise CommandError(f"--policy {policy} and --model {model} would both play: give one of them")
    if model is None and (tool_format is not None or max_tokens is not None):
        raise CommandError("--tool-format and --max-tokens are for a model: give --model")
    environment = load_environment(env)
    rows = rows_to_play(environment, tasks, count=row + 1, seed=seed)
    out = console(stderr=as_json)
    limits = EpisodeLimits(max_turns=max_turns or None)
    if model is None:
        answers = HumanPolicy(out) if policy is None else load_policy(policy)
        engine = RolloutEngine(environment, ShownPolicy(answers, out), limits=limits)
        [episode] = engine.play(rows[row:], seed=seed)
    else:
        from ...trainer.setup.local_player import local_player  # loads PyTorch

        options = {"max_turn_tokens": max_tokens, "tool_format": tool_format}
        player = local_player(model, environment, rows, limits=limits, **options)
        player.engine.policy = ShownPolicy(player.policy, out)
        [episode] = player.run(episode_specs(rows[row:], group_size=1, seed=seed))
    show_episode(episode, out)
    if episode.stop is StopReason.MAX_TURNS:
        out.print(f"the episode was cut after {max_turns} turns; --max-turns sets another bound, 0 lifts it")
    if as_json:
        print_json(episode.to_json())
    if episode.failure is not None:
        raise typer.Exit(FAULTS)
