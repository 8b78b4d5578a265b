"""`gymnast eval`: many episodes of an environment, with a server's model, a local one, or a script."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..terminal.completions import players
from ..terminal.exits import FAULTS, CommandError, explained
from ..terminal.options import (
    MAX_TURNS,
    AsJSON,
    EnvironmentReference,
    MaxTokens,
    MaxTurns,
    Seed,
    SuccessReward,
    Tasks,
    ToolFormat,
)

if TYPE_CHECKING:
    from ...envs.episode import EpisodeSpec
    from ...records.evaluations.evaluation import Evaluation
    from ..arguments.evaluator import Evaluator

NUM_TASKS = 32  # of an environment that draws its own


def evaluate(
    env: EnvironmentReference,
    model: Annotated[
        str | None, typer.Option(help="The model: a name of the Hub, a folder; with --url the server's name.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="A server that speaks OpenAI's protocol, such as http://gpu1:8000/v1.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="SCRIPT",
            help="Instead of a model: file.py:name of answers or of a function.",
            autocompletion=players,
        ),
    ] = None,
    tool_format: ToolFormat = None,
    tasks: Tasks = None,
    num_tasks: Annotated[
        int | None, typer.Option("--num-tasks", "-n", min=1, help=f"Tasks to play. [all rows; {NUM_TASKS} if drawn]")
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", "-k", min=1, help="Episodes of each task, the most for pass@k.")
    ] = 1,
    seed: Seed = 0,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="0 is greedy. [the server's default; 1 for a model loaded here]")
    ] = None,
    max_tokens: MaxTokens = None,
    max_turns: MaxTurns = MAX_TURNS,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at the same time.")] = 64,
    requests_per_minute: Annotated[float | None, typer.Option(help="A rate limit of the server.")] = None,
    request: Annotated[
        str | None, typer.Option(metavar="JSON", help="Further parameters of the server's chat completions.")
    ] = None,
    price: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="PROMPT ANSWER", help="Prices of a million tokens, such as 0.15 0.60."),
    ] = None,
    success_reward: SuccessReward = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder of the results. [evals/ENV-MODEL]")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Play the episodes that the results lack, or that failed.")
    ] = False,
    as_json: AsJSON = False,
) -> None:
    """Play many episodes, and report pass@k, reward, endings, tool errors, tokens and cost.

    With --url the model answers from a server; with --model alone it is loaded here.
    """
    from ...envs.engine.rollout_engine import episode_specs
    from ...records.evaluations.evaluation import Evaluation
    from ...records.evaluations.summary import summary_of
    from ...records.files.run_files import EVALUATION_FILE, how_to_look
    from ..arguments.evaluator import choose_evaluator
    from ..arguments.references import load_environment, name_of
    from ..arguments.rows import rows_to_play
    from ..terminal.evaluations import print_summary
    from ..terminal.output import print_json

    environment = load_environment(env)
    rows = rows_to_play(environment, tasks, count=num_tasks or (None if tasks else NUM_TASKS), seed=seed)
    answers: dict[str, Any] = {"model": model, "url": url, "policy": policy, "request": request}
    answers |= {
        "tool_format": tool_format,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "max_turns": max_turns or None,
    }
    evaluator = choose_evaluator(
        environment, rows, **answers, concurrency=concurrency, requests_per_minute=requests_per_minute
    )
    settings = {"environment": env, "rows": tasks, "tasks": len(rows), "samples": samples, "seed": seed, **answers}
    folder = output or Path("evals") / f"{name_of(env)}-{name_of(model or policy or '')}"
    if folder.is_file():
        raise CommandError(f"{folder} is a file: --output names a folder")
    if (folder / EVALUATION_FILE).exists() and not resume:
        raise CommandError(f"{folder} exists: --resume plays what is missing in it, --output names another folder")
    began = time.perf_counter()
    with explained():
        results = (Evaluation.resume if resume else Evaluation.begin)(folder, settings)
    _play(evaluator, results, results.missing(episode_specs(rows, group_size=samples, seed=seed)))
    summary = summary_of(results.episodes, success_reward=success_reward, price=price, temperature=temperature)
    results.finish(summary, time.perf_counter() - began)
    summary["results"] = str(folder)
    if as_json:
        print_json({"settings": settings, **summary})
    else:
        print_summary(summary)
        typer.echo(how_to_look(folder))
    if summary["failed"]:
        raise typer.Exit(FAULTS)


def _play(evaluator: Evaluator, results: Evaluation, specs: Sequence[EpisodeSpec]) -> None:
    """Play these episodes, keep each as soon as it is over, and show on a terminal where they are."""
    from rich.text import Text

    from ...records.files.episode_log import TokenTexts
    from ..terminal.output import console

    texts = TokenTexts(evaluator.decode)

    class Now:
        def __rich__(self) -> Text:
            return Text(evaluator.describe() or "the model is made ready")

    with console(stderr=True).status(Now()):
        if specs:
            evaluator.play(specs, lambda episode: results.add(episode, texts.new([episode])))
