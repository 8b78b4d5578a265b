"""Mistakes on the command line, in run files and in files of rows; the commands run in this process."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from gymnast.cli.main import main

from .answering import Mistake, mistakes

FILES = {
    "game.py": """
from gymnast.envs import ToolEnv

class Game(ToolEnv):
    def reset_task(self, task):
        return [{"role": "user", "content": task["question"]}]

answers = ["7"]
rows = [{"question": "a"}, {"question": "b"}]
""",
    "sub/run.toml": 'environment = "there.py:Game"\nmodel = "some"\n',
    "sub/there.py": "",
    "some-model/config.json": "{}",
    "empty/README": "",
    "run/model/config.json": "{}",
    "old/evaluation.json": "{}\n",
    "bad.jsonl": '{"a": 1}\n{"a": \n',
}
RUN = "environment: game.py:Game\ntasks: game.py:rows\nmodel: some-model\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer's folder, in which the commands run."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "game", raising=False)


def check_command(command: str, expected: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)) == 2
    answer = " ".join(capsys.readouterr().err.split())
    missing = [text for text in expected if text not in answer]
    assert not missing, f"the answer does not name {missing}:\n{answer}"
    assert "Traceback" not in answer


@mistakes(
    ("trian run.toml", "No such command 'trian'", "Did you mean 'train'"),
    ("init game.py", "game.py is a file", "a new folder"),
    ("train game.toml", "game.toml cannot be read: No such file"),
    ("train game.tml", "game.tml is neither an environment, such as file.py:MyEnvironment, nor a run file", ".toml"),
    ("train sub", "sub is neither an environment", "nor a run file"),
    ("train game.py", "game.py is a file: name the class in it, game.py:MyEnvironment"),
    ("train game.py:Gam", "game.py has no 'Gam'", "do you mean 'Game'?"),
    ("train game.py:Game", "the run has no model", "--model"),
    ("train sub/run.toml", "sub/there.py has no 'Game'"),
    ("train game.py:Game --model ./missing", "there is no folder ./missing with a model", "Qwen/Qwen3-0.6B"),
    ("train game.py:Game --model empty --tasks game.py:rows", "the folder empty has no config.json"),
    ("train game.py:Game --model some-modell --tasks game.py:rows", "no folder 'some-modell'", "mean 'some-model'"),
    ("train game.py:Game --model a --tasks game.py:rows --algorithm ppo", "must be one of grpo, rloo, got 'ppo'"),
    ("train game.py:Game --model a --tasks game.py:rows --set max_step=1", "did you mean 'max_steps'"),
    ("train game.py:Game --model a --tasks game.py:rows --set max_steps=ten", "of type int, got str: 'ten'"),
    ("train game.py:Game --model a --tasks game.py:rows --set bf16=False", "write bf16=false"),
    ("train game.py:Game --model a", "Game has no task", "--tasks"),
    ("train game.py:Game --model a --set max_steps 3", "--set takes name=value", "got 'max_steps'"),
    ("eval game.py:Game --tasks game.py:rows --model run", "the folder run has no config.json", "run/model has one"),
    ("eval game.py:Game --tasks game.py:rows --policy game.py:Game", "a function that answers", "game.Game"),
    ("eval game.py:Game --tasks game.py:rows", "give --model NAME", "--policy SCRIPT"),
    ("eval game.py:Game --tasks game.py:rows --model m --url localhost:8000", "begins with http://", "localhost:8000"),
    ("eval game.py:Game --tasks game.py:rows --policy game.py:rows", "text or a message", "got {'question': 'a'}"),
    ("eval game.py:Game --tasks game.py:rows --policy game.py:answer", "do you mean 'answers'?"),
    ("eval game.py:Game --tasks game.py:rows --policy game.py:answers --temperature 0", "--temperature", "no tokens"),
    ("eval game.py:Game --tasks game.py:rows --policy game.py:answers -o old", "exists", "--resume", "--output"),
    (
        "eval game.py:Game --tasks game.py:rows --policy game.py:answers -o game.py",
        "game.py is a file",
        "names a folder",
    ),
    ("eval game.py:Game --tasks game.py:rows --policy game.py:answers -k 0", "--samples", "greater than or equal to 1"),
    ("eval game.py:Game --tasks game.py:rows --model m --request '{}'", "--request", "give its --url"),
    ("eval game.py:Game --tasks game.py:rows --model m --url http://x/v1 --tool-format react", "server reads calls"),
    ("check game.py:Game --tasks game.py:rows --tool-format react", "--tool-format is for a model", "--model"),
    ("eval game.py:Game --tasks missing.jsonl --policy game.py:answers", "missing.jsonl cannot be read: No such file"),
    ("eval game.py:Game --tasks bad.jsonl --policy game.py:answers", "bad.jsonl:2 is not JSON"),
    ("eval game.py:Game --tasks game.py --policy game.py:answers", "write file.py:name"),
    ("play game.py:Game --tasks game.py:rows --row 5", "game.py:rows has 2 rows, and 6 are needed"),
    ("play game.py:rows", "environment must be an Environment", "got [{'question'"),
    ("play Calculator-v0", "near names are 'gymnast/Calculator-v0'", "file.py:Class"),
    ("check sub/run.toml", "describes a run, which gymnast train takes", "file.py:MyEnvironment"),
    ("compare old", "Missing argument 'second'"),
    ("compare missing old", "there is no folder 'missing'", "the results of gymnast eval"),
    ("compare game.py game.py", "'game.py' is a file; give its folder", "the results of gymnast eval"),
    ("view missing", "there is no folder 'missing'", "the output_dir of a training"),
    ("view sub", "'sub' has no metrics.jsonl and no episodes.jsonl"),
    ("view sub --port 9000", "--port 9000 is for a page that is served: add --follow"),
    ("why missing", "there is no folder 'missing'", "the output_dir of a training"),
    ("replay missing", "there is no folder 'missing'"),
    ("export sub --to html", "--to takes atif or inspect, got 'html'"),
    ("sandbox lst", "No such command 'lst'", "list"),
    ("serve vllm", "Missing argument 'model'"),
)
def test_commands(mistake: Mistake, capsys: pytest.CaptureFixture[str]) -> None:
    command, *expected = mistake
    check_command(command, tuple(expected), capsys)


@mistakes(
    ("{RUN}options: {{save_strategy: no}}", "YAML reads save_strategy: no as False", 'write "no" in quotes'),
    ("{RUN}lora: {{rank: 8}}", "peft.LoraConfig has no 'rank'", "it is called r"),
    ("{RUN}learning_rate: 1", "a run has no learning_rate", "under [options]"),
    ("{RUN}options: {{learning_rat: 1}}", "did you mean 'learning_rate'"),
    ("{RUN}options: [max_steps]", "options must be a table, [options], got ['max_steps']"),
    ("{RUN}rewards: game.py:f", "rewards must be a list of texts"),
    ("{RUN}rewards: [game.py]", "game.py is a file: name the reward function in it"),
    ("{RUN}eval_tasks: [rows.json]", "eval_tasks must be a text, or a table of texts"),
    ("{RUN}algorithm: ppo", "algorithm must be one of grpo, rloo, got 'ppo'"),
    ("environment: [", "run.yaml is not YAML"),
)
def test_run_files(mistake: Mistake, capsys: pytest.CaptureFixture[str]) -> None:
    text, *expected = mistake
    Path("run.yaml").write_text(text.format(RUN=RUN) if "{RUN}" in text else text)
    check_command("train run.yaml", tuple(expected), capsys)
