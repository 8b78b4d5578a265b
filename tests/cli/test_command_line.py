"""The command line itself: start-up, exit codes, errors, and references to environments and rows."""

from __future__ import annotations

import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gymnast.cli.terminal.output import print_json

from .made_runs import episode, write_run
from .running import Run

CALCULATOR = "gymnast/Calculator-v0"
GAME = """
from gymnast.envs import ToolEnv, tool

class Guess(ToolEnv):
    def reset_task(self, task):
        self.number = task["number"]
        return [{"role": "user", "content": "Guess my number."}]

    def reply(self, message):
        self.reward = float(str(self.number) in message["content"])
        self.terminated = True
        return []

class Broken(ToolEnv):
    def reset_task(self, task):
        raise RuntimeError("the database is down")

answers = ["7"]
rows = [{"number": 7}, {"number": 8}]

def make_rows():
    return rows
"""


@pytest.fixture
def game(tmp_path: Path) -> Path:
    path = tmp_path / "guessing_game.py"
    path.write_text(GAME)
    return path


def test_help_loads_nothing_slow() -> None:
    program = (
        "import sys\nfrom gymnast.cli.main import main\ncode = main(['--help'])\n"
        "slow = {*sys.modules} & {'torch', 'transformers', 'gymnasium', 'numpy', 'pydantic', 'rich', 'asyncio'}\n"
        "sys.exit(f'loaded: {slow}' if slow else code)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert "play" in result.stdout


WITHOUT_TRAINING = """
import os
import sys
from gymnast.cli.main import main

sys.modules |= dict.fromkeys(("torch", "transformers", "accelerate"))  # as if they were not installed
RUNS = "--tasks=guess:rows", "--policy=guess:oracle"
GAME = "guess:GuessNumber"
codes = [
    main(["init", "guess"]),
    os.chdir("guess") or main(["check", GAME, RUNS[0], "--oracle=guess:oracle"]),
    main(["play", GAME, *RUNS]),
    main(["eval", GAME, *RUNS]),
    main(["view", "../run"]),
    main(["why", "../run"]),
    main(["check", GAME, RUNS[0], "--model=some"]),
    main(["eval", GAME, RUNS[0], "--model=some"]),
    main(["train", GAME, "--model=some", RUNS[0]]),
    main(["serve", "vllm", "some"]),
]
sys.exit(str(codes))
"""


def test_all_but_training_works_without_its_packages(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [(0, episode()), (0, episode(member=1))], [{"step": 1, "reward": 0.0}])
    command = [sys.executable, "-c", WITHOUT_TRAINING]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    *errors, codes = result.stderr.splitlines()
    assert codes == "[0, 0, 0, 0, 0, 0, 2, 2, 2, 2]", result.stderr
    missing = "error: gymnast.trainer needs the extra `train` of gymnast-rl (import of accelerate halted; "
    assert len(errors) == 4
    assert all(error.startswith(missing) for error in errors), errors


COMPLETED = {
    "sand": ["sandbox"],
    "export run --to ins": ["inspect"],
    "train run.toml --set log_epi": ["log_episodes_steps="],
    "train run.toml --set learning_ra": ["learning_rate="],
    "train gues": ["guessing_game.py:Guess", "guessing_game.py:Broken"],
    "check guessing_game.py:G": ["guessing_game.py:Guess"],
    "play gymnast/Calculator-v0 --tasks ./gu": [
        f"./guessing_game.py:{name}" for name in ("answers", "rows", "make_rows")
    ],
}


def test_the_shell_completes_commands_options_and_names_in_files(game: Path) -> None:
    program = (
        "import os, sys\nfrom gymnast.cli.main import main\nsys.argv = ['gymnast']\n"
        "for typed in sys.stdin.read().splitlines():\n"
        "    os.environ |= {'COMP_WORDS': f'gymnast {typed}', 'COMP_CWORD': str(len(typed.split()))}\n"
        "    main()\n    print(';', flush=True)\nsys.exit(str({*sys.modules} & {'torch', 'transformers'}))"
    )
    shell = os.environ | {"_GYMNAST_COMPLETE": "complete_bash"}
    options = {"cwd": game.parent, "env": shell, "input": "\n".join(COMPLETED), "timeout": 60}
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, **options)
    assert [part.split() for part in result.stdout.split(";")[:-1]] == [*COMPLETED.values()], result.stderr
    assert result.stderr == "set()\n"


@pytest.mark.parametrize("arguments", [["no-such-command"], ["play"], ["play", CALCULATOR, "--row", "-1"]])
def test_wrong_usage_has_exit_code_2(run: Run, arguments: list[str]) -> None:
    outcome = run(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("Usage: gymnast")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ("gymnast/Calculater-v0", "Did you mean: `Calculator`"),
        ("gymnast.envs:Calculater", "gymnast.envs has no 'Calculater'; do you mean 'Calculator'?"),
        ("no_such_package.games:Game", "there is no module 'no_such_package.games', neither installed nor in"),
        ("missing.py:Game", "there is no file"),
        ("guessing_game.py:Wordle", "guessing_game.py has no 'Wordle'; it has Broken, Guess, make_rows"),
        ("Chess", "an environment is an installed one, a Gymnasium id, file.py:Class or package.module:Class"),
    ],
)
def test_an_environment_that_is_not_there(run: Run, game: Path, environment: str, message: str) -> None:
    outcome = run("play", environment)
    assert outcome.code == 2
    assert message in outcome.err
    assert "Traceback" not in outcome.err


def test_an_environment_without_tasks_asks_for_them(run: Run, game: Path) -> None:
    outcome = run("play", "guessing_game.py:Guess")
    assert outcome.code == 2
    assert "Guess has no task" in outcome.err
    assert "--tasks (in a run file: tasks) takes rows.jsonl" in outcome.err


def test_an_error_in_a_users_file_says_where_it_was_raised(run: Run, tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text("first = 1\nsecond = first.upper()\n")
    outcome = run("play", "faulty.py:Game")
    assert outcome.code == 2
    assert "AttributeError: 'int' object has no attribute 'upper'" in outcome.err
    assert "faulty.py:2" in outcome.err
    (tmp_path / "ends.py").write_text("raise SystemExit('this file is a program')")
    ended = run("play", "ends.py:Game")
    assert (ended.code, ended.err) == (2, "this file is a program\n")
    with pytest.raises(AttributeError):
        run("--debug", "play", "faulty.py:Game")


def test_a_person_plays(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Keyboard:
        lines = iter(["add(1, 2); multiply(a=2, b=4)", "add(1", "add(a=x)", "final_answer(3)"])

        def readline(self) -> str:
            return next(self.lines) + "\n"

    monkeypatch.setattr(sys, "stdin", Keyboard())
    outcome = run("play", CALCULATOR, "--seed", 3)
    assert outcome.code == 0
    assert re.findall(r"     tool  (.*)", outcome.out) == ["3", "8", "wrong"]
    assert outcome.out.count("please repeat") == 2
    assert "stop reason final_answer, 2 turns" in outcome.out
    assert "answer with text, or with calls such as add(a=..., b=...)" in outcome.out


def test_the_end_of_the_input_is_an_error_without_a_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    outcome = run("play", CALCULATOR)
    assert outcome.code == 2
    assert "error: the input ended before the episode did" in outcome.err
    assert "Traceback" not in outcome.out + outcome.err


def test_a_failed_episode_has_exit_code_1(run: Run, game: Path) -> None:
    outcome = run("play", "guessing_game.py:Broken", "--tasks", "guessing_game.py:rows")
    assert outcome.code == 1
    assert "the episode failed at reset: RuntimeError: the database is down" in outcome.out


def test_a_mistake_that_the_message_explains_has_no_traceback(run: Run, tmp_path: Path) -> None:
    (tmp_path / "text.py").write_text(
        "from gymnast.envs import ToolEnv\n"
        "class Text(ToolEnv):\n"
        "    def reset_task(self, task):\n"
        "        return 'Hello'\n"
        "rows = [{}]\n"
    )
    outcome = run("play", "text.py:Text", "--tasks", "text.py:rows")
    assert outcome.code == 1
    assert "Text.reset_task() must give a list of messages, got str: 'Hello'" in outcome.out
    assert "Traceback" not in outcome.out


def test_json_is_the_only_output(run: Run, game: Path) -> None:
    played = "play guessing_game.py:Guess --tasks guessing_game.py:rows --policy guessing_game.py:answers --json"
    assert json.loads(run(*played.split()).out)["stop"] == "env_terminated"


def test_a_scripted_function_sees_the_tools(run: Run, tmp_path: Path) -> None:
    (tmp_path / "first_tool.py").write_text(
        "from gymnast.envs import tool_call\n"
        "def answer(messages, tools):\n"
        "    return tool_call(tools[-1]['function']['name'], answer=0)\n"
    )
    assert run("play", CALCULATOR, "--policy", "first_tool.py:answer", "--json").json["stop"] == "final_answer"


def test_json_output_has_no_constants_that_strict_readers_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"loss": math.nan, "norms": [math.inf, 1.5], "folder": Path("né")})
    assert capsys.readouterr().out == '{"loss": null, "norms": [null, 1.5], "folder": "né"}\n'
