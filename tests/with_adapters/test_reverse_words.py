"""The example that trains a pretrained model on a task of reasoning-gym."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gymnast.envs.adapters import ReasoningGymEnv
from gymnast.trainer.testing.tiny import make_tiny_model, tokenizer_for

from ..programs.example_runs import names_of, read_summary, run

EXAMPLE = names_of("reverse_words.py")


def test_held_out_questions_are_not_in_training() -> None:
    rows = ReasoningGymEnv(EXAMPLE["questions"](1, EXAMPLE["TRAINING"] + EXAMPLE["HELD_OUT"])).rows
    held_out = {row["question"] for row in rows[-EXAMPLE["HELD_OUT"] :]}
    assert len(held_out) == EXAMPLE["HELD_OUT"]
    assert not held_out & {row["question"] for row in rows[: -EXAMPLE["HELD_OUT"]]}


def test_demonstrations_show_the_form_and_few_right_answers() -> None:
    dataset = EXAMPLE["questions"](1, 300)
    shown = EXAMPLE["demonstrations"](ReasoningGymEnv(dataset), dataset, 300)
    right = 0
    for index, (messages, tools) in enumerate(shown):
        assert tools is None
        assert [message["role"] for message in messages] == ["user", "assistant"]
        right += messages[1]["content"] == f"<answer>{dataset[index]['answer']}</answer>"
    assert 90 < right < 150  # a third, and some of the orders that are drawn


def test_it_trains_and_leaves_a_summary(tmp_path: Path) -> None:
    dataset = EXAMPLE["questions"](1, 100)
    shown = EXAMPLE["demonstrations"](ReasoningGymEnv(dataset), dataset, 100)
    tokenizer = tokenizer_for(shown)
    make_tiny_model(tokenizer).save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    run("reverse_words.py", "--model", str(tmp_path / "tiny"), "--steps", "1", "--demonstrations", "2", cwd=tmp_path)
    folder = tmp_path / "runs" / "reverse-words-tiny-seed1"
    summary = read_summary(folder)
    assert (summary["steps"], summary["drift_tokens"], summary["episodes"]) == (1, 0, 64)
    left = {path.name for path in folder.iterdir()}
    assert {"summary.json", "metrics.jsonl", "reward.png", "episodes.jsonl", "model"} <= left


def ended(monkeypatch: pytest.MonkeyPatch, *options: str) -> object:
    """Run the example in this process until it exits; return its status or its last words."""
    monkeypatch.setattr("sys.argv", ["reverse_words.py", "--model", "tiny", *options])
    with pytest.raises(SystemExit) as stop:
        EXAMPLE["main"]()
    return stop.value.code


@pytest.mark.parametrize("steps", ["-1", "513"])
def test_demonstrations_are_of_training(
    steps: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, "--demonstrations", steps) == 2
    assert f"--demonstrations must be from 0 to 512, got {steps}" in capsys.readouterr().err


def test_a_missing_reasoning_gym_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    assert "error: examples/reverse_words.py needs the extra `reasoning_gym`" in str(ended(monkeypatch))
    assert list(tmp_path.iterdir()) == []
