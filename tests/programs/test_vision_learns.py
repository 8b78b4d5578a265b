"""The agent that sees learns, as `make train-vision` shows it, in fewer steps; its own file runs beside the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gymnast.envs import RolloutEngine, ScriptedPolicy, tool_call
from gymnast.records import read_episodes

from .example_runs import ROOT, names_of, pictures, read_summary, run


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_walk_is_learned_by_seeing_and_not_by_a_blind_model(tmp_path: Path) -> None:
    run("walk.py", "--seed", "1", "--steps", "60", cwd=tmp_path, timeout=1700)
    summary = read_summary(tmp_path / "runs" / "walk-grpo-seed1")
    assert summary["success_before"] <= 0.4
    assert summary["success_after"] >= 0.8
    assert summary["control"]["success_after"] <= summary["chance"]["best"] + 0.05
    assert summary["drift_tokens"] == summary["control"]["drift_tokens"] == 0
    for name in ("walk-grpo-seed1", "walk-grpo-seed1-blind"):
        _, episode = next(iter(read_episodes(tmp_path / "runs" / name / "episodes.jsonl")))
        assert len(episode.traces[0].images) >= 2


def test_the_process_of_the_control_ends_with_the_program() -> None:
    program = f"""
import os, runpy, time
with runpy.run_path({str(ROOT / "examples" / "walk.py")!r})["second_process"]() as processes:
    print(processes.submit(os.getpid).result(), flush=True)
    processes.submit(time.sleep, 600).result()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        control = int(running.stdout.readline())
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=60) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(control, 0)


def test_the_chance_of_a_blind_walk_is_that_of_the_environment() -> None:
    walk = names_of("walk.py")
    steps = ("left", "up", "left", "up", "left")
    script = [tool_call("look"), *(tool_call("move", to=to) for to in steps)]
    games = RolloutEngine(walk["Walk"](blind=True), ScriptedPolicy(script)).play(walk["BOARDS"])
    arrivals = [walk["arrives"](steps, **board) for board in walk["BOARDS"]]
    assert [game.reward for game in games] == [float(arrived) for arrived in arrivals]
    assert walk["chance"]()["best"] == sum(arrivals) / len(arrivals) == 17 / 72
    assert {str(np.unique(np.asarray(seen.open()))) for game in games for seen in pictures(game)} == {"[128]"}
    [game] = RolloutEngine(walk["Walk"](), ScriptedPolicy(script)).play([{"blue": (2, 1), "red": (0, 0)}])
    places = [np.argwhere(np.asarray(seen.open())[::16, ::16, 2] == 220).tolist() for seen in pictures(game)]
    assert places == [[[2, 1]], [[2, 0]], [[1, 0]], [[1, 0]], [[0, 0]]]  # the third step went over the edge
