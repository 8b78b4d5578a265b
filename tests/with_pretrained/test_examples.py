"""The commands with which the examples and the tutorials run the pretrained model."""

from __future__ import annotations

import ast
import asyncio
import re
import shlex
from pathlib import Path

import pytest

from gymnast.cli.main import main
from gymnast.sandbox import build_image

from ..importing import benchmark

ROOT = Path(__file__).parents[2]
FOLDER = benchmark("pretrained").model_folder()
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if "__main__" in path.read_text()]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))

MODEL = r'"\$(?:\(make --silent pretrained\)|MODEL)"'
BRIEFLY = {
    "play": ["--max-tokens", "4"],
    "eval": ["--max-tokens", "4", "-n", "1"],
    "train": ["--set", "max_steps=1", "--set", "max_completion_length=8"],
}
SAID = {"play": "assistant", "eval": "1 of 1 tasks, 0 failed", "train": "the run is in runs/smollm2"}


def text_of(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text())) or "" if path.suffix == ".py" else path.read_text()


def commands() -> list[str]:
    texts = [text_of(path).replace("\\\n", " ") for path in (*EXAMPLES, *TUTORIALS)]
    found = re.findall(rf"^ *gymnast (.* --model {MODEL}.*)$", "\n".join(texts), re.MULTILINE)
    return sorted({" ".join(command.split()) for command in found})


@pytest.mark.parametrize("path", [*EXAMPLES, *TUTORIALS], ids=lambda path: path.name)
def test_every_example_and_tutorial_says_how_it_is_run_with_the_pretrained_model(path: Path) -> None:
    assert re.search(r"make (--silent |train-)?pretrained", text_of(path))


@pytest.mark.skipif(not FOLDER.is_dir(), reason="the pretrained model is not there: make pretrained")
@pytest.mark.filterwarnings("ignore:ToolEnv has no tools and no reply")
@pytest.mark.parametrize("command", commands(), ids=lambda command: command.split()[1])
def test_the_commands_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    if "own_image" in command:
        asyncio.run(build_image())
    words = shlex.split(re.sub(MODEL, str(FOLDER), command))
    if words[0] == "train":  # in a new project
        assert main(["init", "guess"]) == 0
        monkeypatch.chdir(tmp_path / "guess")
    assert main([*words, *BRIEFLY[words[0]]]) == 0
    printed = capsys.readouterr().out
    assert SAID[words[0]] in printed, printed
