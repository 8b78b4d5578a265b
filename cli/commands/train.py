"""`gymnast train`: a training that a file or the command line describes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..arguments.run_file import check_settings
from ..terminal import completions
from ..terminal.exits import INTERRUPTED, CommandError
from ..terminal.options import AsJSON, Tasks, ToolFormat

if TYPE_CHECKING:
    from ..arguments.run_file import RunFile

DRAWN = 512  # tasks of an environment that draws its own


def train(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV|FILE",
            help="An environment as in `gymnast play`, or a run file (TOML or YAML).",
            autocompletion=completions.runs,
        ),
    ],
    model: Annotated[str | None, typer.Option(help="A name of the Hub, or a folder.")] = None,
    tasks: Tasks = None,
    tool_format: ToolFormat = None,
    algorithm: Annotated[str | None, typer.Option(help="grpo or rloo. [grpo]")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="An option of the training, such as max_steps=100; repeatable.",
            callback=check_settings,
            autocompletion=completions.settings,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in the run's folder.")
    ] = False,
    as_json: AsJSON = False,
) -> None:
    """Train a model. The run's folder gets the description of the run, its metrics and the trained model.

    Options on the command line override those in the file.
    """
    from ...records.files.run_files import how_to_look
    from ..arguments.references import load_environment, name_of, put_on_path
    from ..arguments.run_file import ENDINGS, RunFile, parse_setting, read_entries
    from ..terminal.output import print_result

    is_file = env.endswith(ENDINGS)
    if not is_file:
        load_environment(env)  # before an option that is missing
    name = Path(env).stem if is_file else name_of(env)
    entries: dict[str, Any] = read_entries(Path(env)) if is_file else {"environment": env}
    given = {"model": model, "tasks": tasks, "tool_format": tool_format, "algorithm": algorithm}
    entries |= {name: value for name, value in given.items() if value is not None}
    folder = Path(env).parent if is_file else Path()
    entries["options"] = {"output_dir": str(folder / "runs" / name)} | entries.get("options", {})
    entries["options"] |= dict(map(parse_setting, settings or ()))
    if is_file:
        put_on_path(folder)  # for modules that the run file names
    outcome = _train(RunFile(**entries), resume=resume)
    if outcome is not None:
        text = f"the run is in {outcome['folder']}, the model in {outcome['model']}"
        if entries["options"].get("record_run", True):
            text += f"\n{how_to_look(outcome['folder'])}"
        print_result(outcome, text, as_json=as_json)


def _train(run: RunFile, *, resume: bool) -> dict[str, Any] | None:
    """Train, and return the folders of the run and of the model, and the last value of each metric.

    Returns None in all processes of a training but the first, so that the outcome is printed once.
    """
    from ..arguments.references import load_environment, load_object
    from ..arguments.rows import draw_rows, open_data_sets, open_rows
    from ..terminal.output import console

    if run.model.startswith((".", "/", "~")) and not Path(run.model).expanduser().is_dir():
        raise CommandError(
            f"there is no folder {run.model} with a model; a model of the Hub is named like Qwen/Qwen3-0.6B"
        )
    environment = load_environment(run.environment)
    rows = open_rows(run.tasks) if run.tasks else draw_rows(environment, DRAWN, seed=0)
    from ...trainer import GRPOConfig, GRPOTrainer, RichProgress, RLOOConfig, RLOOTrainer, RunFolder  # loads PyTorch

    trainer_class, config_class = {"grpo": (GRPOTrainer, GRPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}[run.algorithm]
    args = config_class(**run.options)
    folder = Path(str(args.output_dir))
    records = [RunFolder(folder)] if args.record_run else []
    trainer = trainer_class(
        run.model,
        environment,
        args,
        rows,
        open_data_sets(run.eval_tasks) if run.eval_tasks else None,
        reward_funcs=[load_object(name, "a reward function") if ":" in name else name for name in run.rewards],
        tool_format=run.tool_format,
        peft_config=run.lora,
        callbacks=[*records, RichProgress(console(stderr=True))],
    )
    if trainer.is_world_process_zero():
        _write(run, folder)
    trainer.train(resume_from_checkpoint=resume or None)
    if trainer.was_interrupted:
        if trainer.is_world_process_zero():
            typer.echo("interrupted; the same command with --resume goes on", err=True)
        raise typer.Exit(INTERRUPTED)
    model = folder / "model"
    trainer.save_model(str(model))
    if not trainer.is_world_process_zero():
        return None
    metrics = {name: value for log in trainer.state.log_history for name, value in log.items()}
    return {"folder": str(folder), "model": str(model), "metrics": metrics}


def _write(run: RunFile, folder: Path) -> None:
    """Write the run's description; that of an earlier, other run in the folder is moved aside."""
    from ...records.files.run_files import RUN_FILE, move_aside
    from ..arguments.run_file import to_yaml

    path, text = folder / RUN_FILE, to_yaml(run, folder)
    if path.exists() and path.read_text() != text:
        move_aside(path)
    path.write_text(text)
