"""The records of a run."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from gymnast.envs import Episode, EpisodeSpec, Message, Task, tool
from gymnast.records import Run, read_episodes, why_lines
from gymnast.records.files.episode_log import EpisodeLog, TokenTexts
from gymnast.records.files.evaluated_episodes import EvaluatedEpisodes
from gymnast.trainer import GRPOTrainer, RichProgress, RunFolder

from .buttons import ROWS, Buttons, ScriptedGenerator, call_ids, config, make_trainer, model, tokenizer


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_a_run_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    trainer = make_trainer(tmp_path, callbacks=[folder], max_steps=3, eval_rows=ROWS)
    trainer.evaluate()
    trainer.train()
    lines = lines_of(tmp_path / "run")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 3]  # the evaluation before, the steps, the summary
    assert "eval_reward" in lines[0]
    assert all("reward" in line for line in lines[1:4])
    assert folder.totals["episodes/played"] == 24
    assert folder.totals["tokens/drift"] == 0
    assert folder.totals["tools/calls"] >= 20
    assert png_size(tmp_path / "run" / "reward.png") == (840, 480)
    folder.write_summary({"steps": 3, "interrupted": False})
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == {"steps": 3, "interrupted": False}


def test_a_training_records_itself_and_nothing_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer(tmp_path / "plain", max_steps=3, record_run=True).train()
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"gymnast why {tmp_path}/plain says why")
    assert f"gymnast view {tmp_path}/plain shows" in said
    run = Run(tmp_path / "plain")
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    assert [(step, len(rows)) for step, rows in run.steps()] == [(1, 8), (2, 8), (3, 8)]
    assert all(row.vote == "counts" for row in run.episodes)
    assert "the reward" in why_lines(run)[0]
    assert png_size(tmp_path / "plain" / "reward.png") == (840, 480)
    for add in (False, True):
        elsewhere, out = tmp_path / f"elsewhere{add}", tmp_path / f"out{add}"
        given = RunFolder(elsewhere)
        trainer = make_trainer(out, callbacks=() if add else given, record_run=True)
        if add:
            trainer.add_callback(given)
        trainer.train()
        assert [line["step"] for line in lines_of(elsewhere)] == [1, 1]
        assert not (out / "metrics.jsonl").exists()
    assert "gymnast why" not in capsys.readouterr().err  # a program with a folder of its own has its own last line


def test_recorded_episodes_have_a_bounded_size(tmp_path: Path) -> None:
    def round_of(text: str) -> list[Episode]:
        message: Message = {"role": "user", "content": text}
        specs = [EpisodeSpec(task=Task(id="a"), group=f"{group}@0", member=at) for group in "abcd" for at in (0, 1)]
        return [Episode(spec=spec, prompt=[message]) for spec in specs]

    processes = 1000  # each has 64 kB, 4 kB a round
    log = EpisodeLog(tmp_path, every=None, processes=processes)
    log.begin(0, max_steps=160)
    written = {step: log.add(step, round_of("x" * 400)) for step in range(160)}
    assert [step for step, episodes in written.items() if episodes] == [*range(0, 160, 10)]
    assert [len(written[step]) for step in (0, 10, 20)] == [4, 6, 4]  # whole groups, also from the room that is left
    assert log.path.stat().st_size <= 64_000
    assert sum(map(len, written.values())) == len([*read_episodes(log.path)])


def test_recorded_evaluations_are_spread_and_have_a_bounded_size(tmp_path: Path) -> None:
    specs = [EpisodeSpec(task=Task(id="a"), group=f"{group}@0", member=at) for group in "abcd" for at in (0, 1)]
    played, titles = [Episode(spec=spec, prompt=[]) for spec in specs], ("evaluation on easy", "evaluation on hard")
    for begin in (0, 44):  # the first training is killed, and resumed at step 40
        log = EvaluatedEpisodes(tmp_path)
        log.resume(40)
        for step in range(begin, 161, 4):
            for title in titles:
                log.add(title, step, played, every=None, max_steps=160, data_sets=2000, texts=TokenTexts(str))
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    tens = [-(-number // 4) * 4 for number in range(0, 161, 10)]
    for title in titles:  # whole groups in 1.9 kB
        assert [line["step"] for line in lines if line["title"] == title] == [step for step in tens for _ in range(4)]


@pytest.mark.parametrize("then", ["nothing", "train", "resume"])
def test_an_evaluation_beside_an_earlier_run(then: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"record_run": True, "eval_rows": ROWS, "save_strategy": "steps", "save_steps": 1}
    make_trainer(tmp_path, max_steps=1, **options).train()
    earlier = lines_of(tmp_path)
    trainer = make_trainer(tmp_path, max_steps=2, **options)
    trainer.evaluate()
    assert lines_of(tmp_path) == earlier
    beside = Run(tmp_path / "evaluation")
    assert (beside.is_evaluation, len(beside.played()), len(beside.evaluations["evaluation"])) == (True, 16, 1)
    if then != "nothing":
        trainer.train(resume_from_checkpoint=then == "resume")
        trainer.evaluate()  # belongs to the training, like each evaluation from now on
        run = Run(tmp_path)
        own = [0] if then == "train" else []
        assert [step for step, _ in run.evaluations["evaluation"]] == [*own, 2]
        assert [row.step for row in run.episodes if row.evaluation] == [*own * 16, *[2] * 16]
        assert [line["step"] for line in run.metrics] == [1, 2]
        assert (tmp_path / "evaluation" / "metrics.jsonl").exists() == (then == "resume")
        assert run.tokens.keys() >= {str(token) for one in run.evaluated() for token in one.traces[0].ids}


def test_what_is_logged_after_half_a_line_is_kept(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "rew')
    trainer = make_trainer(tmp_path, callbacks=[RunFolder(tmp_path / "run")], eval_rows=ROWS)
    trainer.evaluate()
    trainer.train()
    assert ["eval_reward" in line for line in lines_of(tmp_path / "run")] == [True, False, False]


def test_a_broken_line_of_an_earlier_part_is_dropped_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"save_strategy": "steps", "save_steps": 2, "log_episodes_steps": 1, "log_level": "warning"}
    make_trainer(tmp_path, callbacks=[RunFolder(tmp_path)], max_steps=2, **options).train()
    for name in ("metrics.jsonl", "episodes.jsonl", "learning.jsonl"):
        first, *others = (tmp_path / name).read_text().splitlines(keepends=True)
        (tmp_path / name).write_text(first[:15] + "\n" + "".join(others))
    folder = RunFolder(tmp_path)
    make_trainer(tmp_path, callbacks=[folder], max_steps=4, **options).train(resume_from_checkpoint=True)
    assert [line["step"] for line in lines_of(tmp_path)] == [2, 3, 4, 4]
    assert len([*read_episodes(tmp_path / "episodes.jsonl")]) == 31
    named = [message for message in caplog.messages if "skipped line 1 of" in message]
    assert sorted(message.partition(".jsonl")[0].rpartition("/")[2] for message in named) == [
        *("episodes", "learning", "metrics")
    ]


def test_a_run_that_goes_on_has_the_summary_of_its_end_alone(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 1, "logging_steps": 2}
    for steps in (1, 4):  # the first ends before its first log, so its summary has the metrics of that step
        folder = RunFolder(tmp_path / "run")
        trainer = make_trainer(tmp_path, callbacks=[folder], max_steps=steps, **options)
        trainer.train(resume_from_checkpoint=True if steps == 4 else None)
    assert [("train_runtime" in line, line["step"]) for line in lines_of(tmp_path / "run")] == [
        (False, 2),
        (False, 4),
        (True, 4),
    ]
    assert folder.totals["episodes/played"] == 4 * 8


def test_a_new_run_moves_the_records_of_an_old_one_aside(tmp_path: Path) -> None:
    for _ in range(3):
        folder = RunFolder(tmp_path / "run")
        make_trainer(tmp_path, callbacks=[folder], max_steps=2).train()
        folder.write_summary({"steps": 2})
        assert [line["step"] for line in lines_of(tmp_path / "run")] == [1, 2, 2]
        assert folder.totals["episodes/played"] == 16
    for number in (1, 2):
        aside = (tmp_path / "run" / f"metrics.{number}.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in aside] == [1, 2, 2]
        assert (tmp_path / "run" / f"summary.{number}.json").is_file()
        assert (tmp_path / "run" / f"reward.{number}.png").is_file()


def test_episodes_are_read_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "episodes.jsonl"
    make_trainer(tmp_path, max_steps=1, log_episodes_steps=1).train()
    whole = list(read_episodes(path))
    assert [(step, episode.spec.member) for step, episode in whole] == [(0, member) for member in (0, 1, 2, 3)] * 2
    first = path.read_text().splitlines(keepends=True)[0]
    path.write_text(first + first[:-20])  # the state that a killed process leaves
    assert list(read_episodes(path)) == whole[:1]
    path.write_text(first + first[:-20] + "\n{}\n" + first)
    assert list(read_episodes(path)) == [*whole[:1], *whole[:1]]
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"skipped 2 broken lines, the first is line 2 of {path} (JSONDecodeError: ")


def test_nothing_to_plot(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.plot()
    assert not (tmp_path / "run" / "reward.png").exists()


def test_the_curve_shows_evaluations(tmp_path: Path) -> None:
    lines = [{"step": step, "reward": 0.5} for step in (1, 2, 3)]
    evaluations = [{"step": step, "eval_reward": 0.25, "eval_runtime": 1.0} for step in (1, 3)]
    pictures = []
    for found in (lines, lines + evaluations):
        folder = RunFolder(tmp_path / "run")
        folder.metrics_path.write_text("".join(f"{json.dumps(line)}\n" for line in found))
        folder.plot()
        pictures.append((tmp_path / "run" / "reward.png").read_bytes())
    assert pictures[0] != pictures[1]


def test_a_checkpoint_loads_with_transformers(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=2, save_strategy="steps", save_steps=2)
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    assert trainer.model is not None
    expected = trainer.model.state_dict()
    for folder in (tmp_path / "checkpoint-2", tmp_path / "model"):
        loaded = AutoModelForCausalLM.from_pretrained(folder)
        words = AutoTokenizer.from_pretrained(folder)
        assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())
        assert words.chat_template == tokenizer().chat_template
        prompt = words.apply_chat_template([{"role": "user", "content": "Press a button."}], tokenize=False)
        assert words(prompt)["input_ids"] == tokenizer()(prompt)["input_ids"]
    # It plays as the model that was saved.
    again = GRPOTrainer(
        model=str(tmp_path / "model"), environment=Buttons(), args=config(tmp_path / "again"), train_dataset=ROWS
    )
    tokens = [[row.traces[0].completion_ids for row in player.rollout(ROWS, seed=1)] for player in (trainer, again)]
    assert tokens[0] == tokens[1]
    assert tokens[0] != [
        row.traces[0].completion_ids for row in make_trainer(tmp_path, agent=model()).rollout(ROWS, seed=1)
    ]


class OnlySuccesses(Buttons):
    """Sets the metric `success` only when it succeeds."""

    @tool(final=True)
    def left(self) -> str:
        """Press the left button."""
        self.reward = self.metrics["success"] = 1.0
        return "done"

    @tool(final=True)
    def right(self) -> str:
        """Press the right button."""
        return "done"


def test_success_is_the_share_of_successes_in_logs_evaluations_and_on_the_console(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pressed = ScriptedGenerator(lambda request: call_ids(script[len(pressed.requests) - 1]))
    once, never = ["left", *["right"] * 7], ["right"] * 8
    script = [*never, *once, *never, *once, *never]  # an evaluation, two steps, each with an evaluation
    console = Console(file=io.StringIO(), width=1000)
    options = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True}
    options |= {"num_generations_eval": 2}
    callbacks = [RunFolder(tmp_path / "run"), RichProgress(console)]
    trainer = make_trainer(
        tmp_path, environment=OnlySuccesses(), generator=pressed, eval_rows=ROWS, callbacks=callbacks, **options
    )
    trainer.train()
    lines = lines_of(tmp_path / "run")
    assert [line["environment/success"] for line in lines if "loss" in line] == [1 / 8, 1 / 8]
    evaluations = [line for line in lines if "eval_reward" in line]
    assert [line.get("eval_environment/success") for line in evaluations] == [None, 0.0, 0.0]  # first, it is not known
    assert [line.get("eval_pass@1") for line in evaluations] == [None, 0.0, 0.0]
    assert "success 12.5%" in console.file.getvalue()  # type: ignore[attr-defined]
    [warning] = [record.getMessage() for record in caplog.records if "no metric" in record.getMessage()]
    assert "7 of 8 episodes have no metric 'success'" in warning
