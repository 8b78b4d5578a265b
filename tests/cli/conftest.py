"""The command line, run in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gymnast.cli.main import main

from .running import Outcome, Run


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    """`run("play", ENV, ...)` runs `gymnast play ENV ...` in the test's own folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # commands put the folders of a user's files on it

    def run_command(*arguments: object) -> Outcome:
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    yield run_command
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(module)]:
        del sys.modules[name]  # the user's files of this test
