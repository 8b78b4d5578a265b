"""Rows on the command line: from files, from Python, and from the Hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import datasets
import pytest

from ..hub import serving
from .running import Run

GAME = """
import datasets
from gymnast.envs import ToolEnv, tool

class Say(ToolEnv):
    '''The reward is 1 if the answer is the row's.'''

    def reset_task(self, task):
        self.row = task
        return [{"role": "user", "content": "What is in your row?"}]

    def reply(self, message):
        self.reward = float(message["content"] == repr(dict(self.row)))
        self.terminated = True
        return []

rows = [{"number": 7}, {"number": 8}]
def make_rows(): return rows
splits = datasets.DatasetDict(train=datasets.Dataset.from_list(rows), test=datasets.Dataset.from_list(rows[1:]))
def alone(): return datasets.DatasetDict(train=splits["train"])
stream = datasets.IterableDataset.from_generator(make_rows)
"""
PLAY = ["play", "game.py:Say", "--tasks"]


@pytest.fixture(autouse=True)
def game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Two programs of one name and size within a second are one to Python's cache.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "game.py").write_text(GAME)
    return tmp_path


def played(run: Run, game: Path, reference: str, row: Mapping[str, object], index: int = 0) -> float:
    (game / "says.py").write_text(f"answers = [{str(dict(row))!r}]")
    sys.modules.pop("says", None)
    return run(*PLAY, reference, "--policy", "says.py:answers", "--row", index, "--json").json["reward"]


@pytest.mark.parametrize(
    "reference",
    [
        *("rows.jsonl", "rows.json", "rows.csv", "rows.parquet", "game.py:rows", "game.py:make_rows", "game:rows"),
        *("game.py:splits[train]", "game:alone", "game.py:stream"),
    ],
)
def test_rows_come_from_files_and_from_python(run: Run, game: Path, reference: str) -> None:
    (game / "rows.jsonl").write_text('{"number": 7}\n\n{"number": 8}\n')
    (game / "rows.json").write_text('[{"number": 7}, {"number": 8}]')
    (game / "rows.csv").write_text("\ufeffnumber\r\n7\r\n\r\n8\r\n")
    datasets.Dataset.from_list([{"number": 7}, {"number": 8}]).to_parquet(str(game / "rows.parquet"))
    for index, number in enumerate((7, 8)):
        assert played(run, game, reference, {"number": number}, index) == 1


def test_a_line_of_json_may_contain_a_unicode_line_break(run: Run, game: Path) -> None:
    (game / "rows.jsonl").write_text('{"hint": "one\u2028line"}')
    assert played(run, game, "rows.jsonl", {"hint": "one\u2028line"}) == 1


def test_columns_of_csv_have_types_as_in_datasets(run: Run, game: Path) -> None:
    text = 'a,b,c,d,e,f\n1,1,true,007,"two,\nlines",\n-2,2.5e1,False,NA,x,\n,,,,,\n'
    (game / "rows.csv").write_text(text)
    first = {"a": 1, "b": 1.0, "c": True, "d": "007", "e": "two,\nlines", "f": None}
    second = {"a": -2, "b": 25.0, "c": False, "d": "NA", "e": "x", "f": None}
    for index, row in enumerate((first, second, dict.fromkeys("abcdef"))):
        assert played(run, game, "rows.csv", row, index) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.json", None, "rows.json cannot be read: No such file"),
        ("rows.json", "[1]", "row 0 of rows.json must map columns to values, got 1"),
        ("rows.json", '{"number": 7}', "rows.json must be a list of rows, got dict"),
        ("rows.json", "[", "rows.json is not JSON: "),
        ("rows.json", "[]", "rows.json has no rows"),
        ("rows.json", '[{"number": 7}]', "rows.json has 1 rows, and 3 are needed"),
        ("rows.csv", "a,a\n1,2\n", "rows.csv has several columns named 'a'"),
        ("rows.csv", "a,b\n1,2\n1,2,3\n", "rows.csv:3 has 3 fields, and the first line names 2 columns (a, b); put a"),
        ("rows.csv", 'a\n"x', "rows.csv is not CSV: unexpected end of data"),
        ("rows.parquet", "text", "rows.parquet': Parquet file size is 4 bytes"),
        ("game.py:rows[train]", None, "there are no splits in game.py:rows; leave out [train]"),
        ("game.py:splits", None, "has 2 splits: choose one of game.py:splits[train], game.py:splits[test]"),
        ("game.py:splits[trian]", None, "game.py:splits[trian] has 2 splits: choose one of game.py:splits[train]"),
    ],
)
def test_rows_that_cannot_be_used(run: Run, game: Path, name: str, content: str | None, message: str) -> None:
    if content is not None:
        (game / name).write_text(content)
    outcome = run(*PLAY, name, "--row", 2)
    assert outcome.code == 2
    assert message in outcome.err


def test_a_stream_is_not_read_to_its_end(run: Run) -> None:
    outcome = run("check", "game.py:Say", "--tasks", "game.py:stream")
    assert "game.py:stream is a stream of rows, which only gymnast train takes whole; take some: list(" in outcome.err


PROGRAM = """
import contextlib, io, json, sys
from gymnast.cli.main import main

outcomes = {}
for reference in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        main(["play", "game.py:Say", "--policy", "says.py:answers", "--json", "--tasks", reference])
    outcomes[reference] = json.loads(out.getvalue())["reward"] if out.getvalue() else err.getvalue()
print(json.dumps(outcomes))
"""
ON_THE_HUB = {
    "hub:me/tasks[train]": 1.0,
    "hub:me/tasks[test]": 0.0,
    "hub:me/tasks[train[-1:]]": 0.0,
    "hub:me/single": 1.0,
    "hub:me/levels/easy[train]": 1.0,
    "hub:me/levels/easy@v1[train]": 1.0,
    "hub:me/levels/easy@refs/convert/parquet[train]": 1.0,
    "hub:me/single@": "hub:me/single@ must be hub:owner/name, with the split in brackets",
    "hub:me/single@v2": "Revision 'v2' doesn't exist for dataset 'me/single' on the Hub",
    "hub:me/tasks": "hub:me/tasks has 2 splits: choose one of hub:me/tasks[train], hub:me/tasks[test]",
    "hub:me/tasks[trian]": "Unknown split \"trian\". Should be one of ['train', 'test']",
    "hub:me/levels": "Please pick one among the available configs: ['easy', 'hard']; write hub:me/levels/con",
    "hub:me/levels/eazy[train]": "BuilderConfig 'eazy' not found. Available: ['easy', 'hard']; write hub:me/levels/",
    "hub:me/nothing": "Dataset 'me/nothing' doesn't exist on the Hub or cannot be accessed. To go on, check the name;",
    "hub:me/gated": "Dataset 'me/gated' is a gated dataset on the Hub. You must be authenticated",
    "hub:tasks": "hub:tasks must be hub:owner/name, with the split in brackets: hub:owner/name[train]",
    "hub:me/broken": "JSON",
}


def test_rows_come_from_the_hub(game: Path) -> None:
    levels = [{"config_name": level, "data_files": f"{level}.jsonl"} for level in ("easy", "hard")]
    files = {
        **{f"tasks/{name}.jsonl": json.dumps({"number": number}) for name, number in {"train": 7, "test": 8}.items()},
        "tasks/train.jsonl": '{"number": 7}\n{"number": 8}\n',
        "single/data.csv": "number\n7\n",
        "levels/README.md": f"---\nconfigs: {json.dumps(levels)}\n---\n",
        "levels/easy.jsonl": '{"number": 7}\n',
        "levels/hard.jsonl": '{"number": 7}\n',
        "broken/data.jsonl": '{"number": 7\n',
    }
    for name, text in files.items():
        path = game / "hub" / "me" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (game / "says.py").write_text("answers = [\"{'number': 7}\"]")

    def outcomes(*references: str, **environment: str) -> dict[str, float | str]:
        command = [sys.executable, "-c", PROGRAM, *references]
        ran = subprocess.run(
            command, cwd=game, env=os.environ | hub | environment, capture_output=True, text=True, timeout=120
        )
        return json.loads(ran.stdout)

    with serving(game / "hub") as hub:
        found = outcomes(*ON_THE_HUB)
    for reference, expected in ON_THE_HUB.items():
        assert found[reference] == expected if isinstance(expected, float) else expected in str(found[reference])
    found = outcomes("hub:me/single", "hub:me/nothing", HF_HUB_OFFLINE="1")
    assert found["hub:me/single"] == 1  # as it was loaded before
    assert "Couldn't reach 'me/nothing' on the Hub (OfflineModeIsEnabled); without a network" in str(
        found["hub:me/nothing"]
    )
