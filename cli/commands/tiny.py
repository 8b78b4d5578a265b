"""`gymnast tiny`: a tiny model for an environment, to try a training on a laptop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..terminal.exits import CommandError, explained
from ..terminal.options import ORACLE, AsJSON, EnvironmentReference, Seed, Tasks

if TYPE_CHECKING:
    from ...envs.episode import Episode
    from ...envs.registry import EnvironmentLike

DRAWN = 64  # tasks of an environment that draws its own
PLAYED = 64  # episodes that measure the model
STEPS = 40  # of a warm-up
MAX_WARM_UPS = 6
ENOUGH = 0.5  # of what the demonstrations earn; below it, another warm-up follows


def tiny(
    env: EnvironmentReference,
    oracle: Annotated[str, ORACLE],
    tasks: Tasks = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder of the model.")] = Path("tiny-model"),
    seed: Seed = 0,
    as_json: AsJSON = False,
) -> None:
    """Make a tiny model that can call the tools of an environment and is often wrong, for `gymnast train --model`.

    The model learns from episodes of the oracle, most of which have mistakes. It needs neither a download nor a GPU.
    """
    from ..arguments.references import load_environment, load_policy
    from ..arguments.rows import rows_to_play
    from ..terminal.output import console, print_result

    if output.exists():
        raise CommandError(f"{output} exists: --output names another folder, or remove it first")
    environment, player = load_environment(env), load_policy(oracle)
    rows = rows_to_play(environment, tasks, count=None if tasks else DRAWN, seed=seed)
    from ...trainer.models.contexts import file_bars  # the package loads PyTorch
    from ...trainer.testing.demonstrations import demonstrations
    from ...trainer.testing.tiny import make_tiny_model, tokenizer_for, warm_up

    with console(stderr=True).status("the oracle plays") as status:
        with explained():
            shown = demonstrations(environment, rows, player, seed=seed)
        status.update("a tiny model is shown how the tools are called, in about a minute")
        conversations = [(episode.messages, episode.tools) for episode in shown]
        tokenizer = tokenizer_for(conversations)
        model = make_tiny_model(tokenizer, seed=seed)
        tokenizer.save_pretrained(output)
        turns = max(len(episode.turns) for episode in shown)
        earned, demonstrated, warm_ups = float("-inf"), _mean_reward(shown), 0
        while earned < ENOUGH * demonstrated and warm_ups < MAX_WARM_UPS:
            warm_up(model, tokenizer, conversations, steps=STEPS, seed=seed + warm_ups)
            warm_ups += 1
            with file_bars(shown=False):
                model.save_pretrained(output)
            earned = _mean_reward(_episodes_of(output, environment, rows[:PLAYED], turns, seed))
    facts = {"model": str(output), "reward": earned, "reward_of_demonstrations": demonstrated}
    text = f"{output} earns {earned:.2f} on average, and its demonstrations {demonstrated:.2f}\n"
    text += f"next: gymnast train {env} --model ./{output}" + (f" --tasks {tasks}" if tasks else "")
    text += " --set learning_rate=1e-3"  # the default is for a large model: the tiny one would not move
    print_result(facts, text, as_json=as_json)


def _episodes_of(
    model: Path, environment: EnvironmentLike, rows: Sequence[dict[str, Any]], turns: int, seed: int
) -> list[Episode]:
    """Play some 64 episodes with the model, each of at most so many turns."""
    from ...envs.engine.play_episode import EpisodeLimits
    from ...envs.engine.rollout_engine import episode_specs
    from ...trainer.setup.local_player import local_player

    limits = EpisodeLimits(max_turns=turns)
    player = local_player(str(model), environment, rows, limits=limits, max_turn_tokens=256, max_concurrency=PLAYED)
    return player.run(episode_specs(rows, group_size=-(-PLAYED // len(rows)), seed=seed))


def _mean_reward(episodes: Sequence[Episode]) -> float:
    return fmean(episode.reward or 0.0 for episode in episodes)
