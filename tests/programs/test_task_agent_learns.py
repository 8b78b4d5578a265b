"""An agent learns on folders of tasks, as `make train-tasks` shows it; nothing is left when it ends or is killed."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gymnast.records import read_episodes
from gymnast.sandbox import Engine, reap
from gymnast.sandbox.docker.labels import LABEL

from ..sandbox.boxes import containers_of
from .example_runs import command, read_summary

SUMMARY = {
    *("algorithm", "seed", "tasks", "steps", "episodes", "seconds", "interrupted", "drift_tokens"),
    *("success_before", "success_after", "failed_before", "failed_after"),
}


def owned(listing: str, pid: int) -> list[str]:
    command = ["docker", listing, "-q", "--filter", f"label={LABEL}.pid={pid}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


async def reap_all() -> None:
    async with Engine() as engine:
        await reap(engine)


def wait(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_task_agent_learns_and_leaves_nothing(image: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        command("task_agent.py"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            printed, _ = process.communicate(timeout=1700)
        finally:
            process.kill()
    assert process.returncode == 0, printed
    assert containers_of(process.pid) == owned("images", process.pid) == []
    folder = tmp_path / "runs" / "task-agent-grpo-seed1"
    summary = read_summary(folder)
    assert summary.keys() == SUMMARY
    assert (summary["tasks"], summary["drift_tokens"], summary["interrupted"]) == (20, 0, False)
    assert summary["failed_before"] + summary["failed_after"] <= 3, printed
    assert summary["success_before"] < 0.4
    assert summary["success_after"] > 0.85
    episodes = [episode for _, episode in read_episodes(folder / "episodes.jsonl")]
    assert all(episode.report["verifier"] for episode in episodes if episode.failure is None)


@pytest.mark.timeout(600)
def test_a_killed_training_on_tasks_leaves_nothing(image: str, tmp_path: Path) -> None:
    with subprocess.Popen(command("task_agent.py", "--steps", "1"), cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        try:
            wait(lambda: owned("ps", process.pid) and owned("images", process.pid), 400)
        finally:
            process.kill()
    wait(lambda: not owned("ps", process.pid), 30)  # boxes end with their owner
    asyncio.run(reap_all())  # as the next process that opens an engine does, for boxes that had not begun, and images
    assert containers_of(process.pid) == owned("images", process.pid) == []
