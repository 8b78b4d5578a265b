"""Environments of installed packages: their names, `gymnast envs`, the card, and tiny models for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gymnast.envs import RolloutEngine, ScriptedPolicy, ToolEnv, tool, tool_call
from gymnast.trainer.testing.demonstrations import demonstrations

from .running import Run


def install(folder: Path, package: str, *offers: str) -> None:
    """Make a package in a folder of the path, as pip installs it, that offers environments."""
    (folder / f"{package}-1.2.dist-info").mkdir()
    (folder / f"{package}-1.2.dist-info" / "METADATA").write_text(f"Name: {package}\nVersion: 1.2\n")
    entries = "\n".join(["[gymnast.environments]", *offers])
    (folder / f"{package}-1.2.dist-info" / "entry_points.txt").write_text(entries)


@pytest.fixture
def guess(run: Run, tmp_path: Path) -> Path:
    """The project of `gymnast init`, installed; its folder is the current one."""
    assert run("init", "guess_it").code == 0
    sys.path.insert(0, str(tmp_path / "guess_it"))
    install(tmp_path / "guess_it", "guess_it", "guess-it = guess_it:GuessNumber", "lost = no_such_module:Lost")
    return tmp_path / "guess_it"


def test_a_broken_environment_does_not_end_the_list(run: Run, guess: Path) -> None:
    [found, broken] = run("envs", "--json").json["environments"]
    assert (found["name"], found["package"], found["version"], found["error"]) == ("guess-it", "guess_it", "1.2", None)
    assert found["description"].startswith("Guess a number from 1 to 7")
    assert broken["error"] == "broken: ModuleNotFoundError: No module named 'no_such_module'"
    lines = run("envs").out.splitlines()
    assert [line.split()[:3] for line in lines if "1.2" in line] == [
        ["guess-it", "guess_it", "1.2"],
        ["lost", "guess_it", "1.2"],
    ]
    assert (
        "'lost' of guess_it 1.2, no_such_module:Lost, cannot be loaded: ModuleNotFoundError" in run("play", "lost").err
    )


def test_a_name_is_an_environment_everywhere(run: Run, guess: Path) -> None:
    [episode] = RolloutEngine("guess-it", ScriptedPolicy([tool_call("final_answer", number=3)])).play([{"secret": 3}])
    assert episode.reward == 1.0
    assert run("play", "guess-it", "--policy", "guess_it:oracle").code == 0
    assert "near names are 'guess-it'" in run("play", "guess_is").err
    assert "do you mean 'guess-it'?" in run("play", "guess_it").err  # the name of a folder here


def test_a_name_that_two_packages_offer_is_refused(run: Run, guess: Path) -> None:
    install(guess, "other", "guess-it = guess_it:GuessNumber")
    said = run("play", "guess-it").err
    assert "guess_it 1.2 and other 1.2 offer an environment 'guess-it'" in said
    assert "guess_it:GuessNumber" in said


@pytest.mark.parametrize(
    ("name", "package"), [("My Game!", "my_game"), ("2048", "env_2048"), ("json", "json_env"), ("numpy", "numpy_env")]
)
def test_the_package_of_a_project_imports_and_hides_no_other(run: Run, name: str, package: str) -> None:
    assert run("init", name).code == 0
    assert Path(name, package, "environment.py").exists()


def test_the_card_takes_the_place_of_the_last_one(run: Run, guess: Path) -> None:
    readme = guess / "README.md"
    check = ("check", "guess-it", "--tasks", "guess_it:rows", "--oracle", "guess_it:oracle", "--card")
    assert run(*check, readme).code == 0
    card = readme.read_text()
    assert "| oracle | 1 | 1 | 1 |\n| says nothing | 0 | 0 | 0 |" in card
    assert "- `compare(guess)`: Ask how a guess compares with the number.\n    - `guess`: The guess." in card
    assert '{"secret": 1}' in card
    assert "| plays | pass |" in card
    assert "Versions: guess_it 1.2, gymnast-rl" in card
    assert run(*check, readme).code == 0
    assert readme.read_text() == card
    outcome = run(*check, guess / "pyproject.toml")
    assert outcome.code == 2
    assert "pyproject.toml has no place for the card" in outcome.err


class Vault(ToolEnv):
    """Turn the knob to the number, then open."""

    def reset_task(self, task):
        self.code, self.knob = task["code"], 0
        return [{"role": "user", "content": f"The code is {self.code}."}]

    @tool
    def turn(self, number: int) -> str:
        """Turn the knob.

        Args:
            number: A number from 1 to 9.
        """
        self.knob = number
        return "click"

    @tool(final=True)
    def open(self) -> str:
        """Open the vault."""
        self.reward = float(self.knob == self.code)
        return "done"


def open_vault(messages):
    """Plays well, and does not survive an error."""
    assert not any("Error" in str(message["content"]) for message in messages)
    turns = sum(message["role"] == "assistant" for message in messages)
    return tool_call("open") if turns else tool_call("turn", number=int(messages[0]["content"][12]))


def test_demonstrations_have_mistakes_and_errors_after_which_they_go_on() -> None:
    rows = [{"code": code} for code in range(1, 6)]
    shown = demonstrations(Vault(), rows, ScriptedPolicy(open_vault), count=100)
    assert sum(episode.reward or 0 for episode in shown) == 40
    errors = [episode for episode in shown if any(call.outcome != "ok" for call in episode.tool_calls)]
    assert errors
    assert all(episode.stop == "final_answer" for episode in shown)
    again = demonstrations(Vault(), rows, ScriptedPolicy(open_vault), count=100)
    assert [episode.messages for episode in again] == [episode.messages for episode in shown]


@pytest.mark.parametrize(
    ("oracle", "message"),
    [
        (lambda messages: messages[7], "the oracle's episode of task-0 failed, in .*IndexError.*, at .*test_envs.py"),
        (lambda messages: tool_call("open"), "the oracle earns nothing in every task; `gymnast check` with --oracle"),
    ],
)
def test_an_oracle_that_solves_no_task_is_refused(oracle, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        demonstrations(Vault(), [{"code": 1}], ScriptedPolicy(oracle))
