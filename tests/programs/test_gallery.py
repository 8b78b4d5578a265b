"""The gallery: each example trains for a step as a program, and the notebook runs from its first cell to its last."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from .example_runs import ROOT, read_lines, run

EXAMPLES = {
    "reasoning.py": "reasoning",
    "sqlite_search.py": "sqlite-search",
    "user_simulator.py": "user-simulator",
    "wordle.py": "wordle",
}


def check_run(example: str, folder: Path, cwd: Path) -> None:
    """Train one step; the example says its success before and after, and leaves what `gymnast view` reads."""
    printed = run(example, "--steps", "1", cwd=cwd)
    found = re.search(r"(\d+)% of .* before, (\d+)% after", printed)
    assert found is not None, printed
    assert 20 <= int(found[1]) <= 85, "demonstrations teach the format, and rarely the right answer"
    logged = [row for row in read_lines(folder / "metrics.jsonl") if "reward" in row]
    assert [row["step"] for row in logged] == [1]
    assert logged[0]["episodes/failed"] == 0
    assert logged[0]["frac_reward_zero_std"] < 0.5, "most groups must teach something"
    assert len(read_lines(folder / "episodes.jsonl")) == logged[0]["episodes/played"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_trains(example: str, tmp_path: Path) -> None:
    check_run(example, tmp_path / "runs" / EXAMPLES[example], tmp_path)


def test_the_example_with_an_image_of_its_own_trains(image: str, tmp_path: Path) -> None:
    check_run("own_image.py", tmp_path / "runs" / "own-image", tmp_path)


def test_the_notebook_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "examples" / "first_environment.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "clear the outputs before you commit the notebook"
    [training] = [cell for cell in notebook.cells if "STEPS = 20" in cell.source]
    training.source = training.source.replace("STEPS = 20", "STEPS = 1")
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert re.search(r"of 6 are right", printed)
    assert (tmp_path / "runs" / "opposites" / "episodes.jsonl").is_file()
