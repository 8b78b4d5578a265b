"""The way of a row to the loss is measured: the files and functions that one optimiser step enters.

`python -m tests.training.test_step_path` prints the numbers and the files.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from gymnast.envs.runtime.threads import run_in_loop
from gymnast.trainer import GenerationRequest

from .buttons import ScriptedGenerator, call_ids, make_trainer

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("sandbox", "envs", "records", "trainer", "cluster", "cli")
MOST = {"files": 83, "functions": 441, "edges": 176, "entries": 12}
"""The largest numbers that are accepted, in a fresh process: a cache that another test has filled saves a function.

A change that needs more of them should say why. The last one of each looks how deeply the
arguments of a call are nested: no record could hold the deepest.
"""


@cache
def library_file(name: str) -> str | None:
    """The path of a source file of the library below the root; None for another file."""
    path = Path(name)
    if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in PACKAGES:
        return None
    return str(path.relative_to(ROOT))


@dataclass
class StepPath:
    """A profile function that notes calls and returns between files of the library."""

    functions: set[tuple[str, int]] = field(default_factory=set)
    """Functions that have a name: Python 3.12 has no frame for a comprehension, 3.11 has one."""
    edges: set[tuple[str, str]] = field(default_factory=set)
    entries: Counter[str] = field(default_factory=Counter)
    """By file, how often a call or a return enters it from another file."""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        file, outer = library_file(frame.f_code.co_filename), frame.f_back
        if file is None or event not in ("call", "return"):
            return
        while outer is not None and library_file(outer.f_code.co_filename) is None:
            outer = outer.f_back
        caller = "" if outer is None else library_file(outer.f_code.co_filename) or ""
        if event == "call" and not frame.f_code.co_name.startswith("<"):
            self.functions.add((file, frame.f_code.co_firstlineno))
        if file != caller:
            self.entries[file if event == "call" else caller] += 1
            if event == "call":
                self.edges.add((caller, file))

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers to compare with `MOST`; entries are those into `trainer.py`."""
        files, entries = {file for file, _ in self.functions}, self.entries["trainer/trainer.py"]
        return {"files": len(files), "functions": len(self.functions), "edges": len(self.edges), "entries": entries}


def two_turns() -> ScriptedGenerator:
    """A generator that calls a tool in the first turn of an episode, and ends it in the second."""
    lengths: list[int] = []

    def answer(request: GenerationRequest) -> list[int]:
        lengths.append(len(request.prompt.ids))
        is_first = lengths[-1] == lengths[0]
        return call_ids("look" if is_first else ("left", "right")[request.seed % 2])

    return ScriptedGenerator(answer)


def traced_step(folder: Path | str) -> StepPath:
    """Train one step of four episodes of two turns, with a tool call in each."""
    path = StepPath()
    trainer = make_trainer(folder, generator=two_turns(), per_device_train_batch_size=4)

    async def profile(function: Any) -> None:  # in the thread of the event loop, where episodes are played
        sys.setprofile(function)

    callbacks, gc.callbacks[:] = [*gc.callbacks], []  # the library's clock of collections, if another test needed it
    gc.collect()
    gc.disable()  # else things that other tests have left would end within the step
    try:
        run_in_loop(profile(path))
        sys.setprofile(path)
        trainer.train()
    finally:
        gc.enable()
        gc.callbacks[:] = callbacks
        sys.setprofile(None)
        run_in_loop(profile(None))
    assert trainer.state.log_history[0]["episodes/failed"] == 0
    return path


def test_a_step_enters_no_more_files_than_before(tmp_path: Path) -> None:
    numbers = traced_step(tmp_path).numbers
    assert {name: count for name, count in numbers.items() if count > MOST[name]} == {}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        found = traced_step(temporary)
    lines = [", ".join(f"{count} {name}" for name, count in found.numbers.items())]
    lines += [f"{found.entries[name]:5}  {name}" for name in sorted({file for file, _ in found.functions})]
    sys.stdout.write("\n".join([*lines, ""]))
