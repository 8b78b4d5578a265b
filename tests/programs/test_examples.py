"""The examples run as programs and do what their first lines promise."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env

from ..training.launching import deepspeed_variables
from .example_runs import ROOT, command, read_summary, run


def test_the_custom_environment_learns(tmp_path: Path) -> None:
    printed = run("custom_environment.py", cwd=tmp_path)
    found = re.search(r"right in (\d+)% of the games before, (\d+)% after", printed)
    assert found is not None, printed
    before, after = map(int, found.groups())
    assert before < 50
    assert after > 80


def test_an_agent_whose_history_is_compacted_learns_from_exact_tokens(tmp_path: Path) -> None:
    printed = run("long_history.py", cwd=tmp_path)
    found = re.search(r"right in (\d+)% of the episodes before, (\d+)% after", printed)
    assert found is not None, printed
    before, after = map(int, found.groups())
    assert before < 45
    assert after > 65
    assert "3 samples in an episode, 0 tokens of drift" in printed
    difference = re.search(r"differ by at most (\S+)", printed)
    assert difference is not None
    assert float(difference[1]) < 1e-4


def without_docker(example: str, *arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(example, *arguments),
        cwd=cwd,
        env={**os.environ, "DOCKER_HOST": "unix:///nowhere", **variables},
        capture_output=True,
        text=True,
        timeout=900,
    )


def test_the_code_agent_needs_an_engine_or_bubblewrap_and_says_so_at_once(tmp_path: Path) -> None:
    done = without_docker("code_agent.py", cwd=tmp_path, PATH="/nowhere")
    assert done.returncode == 1
    assert done.stdout == ""
    [said] = done.stderr.splitlines()
    assert said.startswith("error: no container engine answers at unix:///nowhere")
    assert "apt-get install docker.io" in said
    assert "apt-get install bubblewrap" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize(("example", "sandbox"), [("code_agent", "BwrapExecutor"), ("task_agent", "BwrapBox")])
@pytest.mark.usefixtures("bubblewrap")
def test_agents_train_without_docker(example: str, sandbox: str, tmp_path: Path) -> None:
    done = without_docker(f"{example}.py", "--steps", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"sandbox: {sandbox}" in done.stdout
    summary = read_summary(tmp_path / "runs" / f"{example.replace('_', '-')}-grpo-seed1")
    assert (summary["steps"], summary["failed_before"], summary["failed_after"]) == (2, 0, 0)


def configuration_files(name: str) -> Any:
    paths = sorted((ROOT / "examples" / "accelerate").glob(f"{name}.yaml"))
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


@configuration_files("*")
def test_configuration_files_have_their_command(path: Path) -> None:
    assert f"accelerate launch --config_file examples/accelerate/{path.name}" in path.read_text()


@configuration_files("fsdp*")
def test_accelerate_reads_the_configuration_of_fsdp(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(["--config_file", str(path), "x.py"]))
    for name, value in prepare_multi_gpu_env(arguments).items():
        if name.startswith("FSDP_"):
            monkeypatch.setenv(name, value)
    plugin: Any = FullyShardedDataParallelPlugin()
    assert (arguments.use_fsdp, plugin.fsdp_version, plugin.state_dict_type.name) == (True, 2, "FULL_STATE_DICT")


@configuration_files("zero*")
def test_accelerate_reads_the_configurations_of_deepspeed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in deepspeed_variables(path).items():
        monkeypatch.setenv(name, value)
    plugin: Any = DeepSpeedPlugin()
    assert f"zero{plugin.zero_stage}" == path.stem
    assert (plugin.gradient_accumulation_steps, plugin.gradient_clipping) == ("auto", "auto")
    assert plugin.zero3_save_16bit_model == (plugin.zero_stage == 3)


def run_here(example: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run an example in this process, as a program of its own spends ten seconds on imports; return its exit status."""
    path = ROOT / "examples" / example
    monkeypatch.setattr("sys.argv", [str(path), *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    return ended.value.code


def test_the_code_agent_needs_a_box(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here("code_agent.py", "--boxes", "0", monkeypatch=monkeypatch) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "--boxes must be at least 1, got 0" in printed.err


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_every_example_explains_itself(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *_ = (ROOT / "examples" / example).read_text().split('"""')[1:]
    assert f"python examples/{example}" in first
    monkeypatch.chdir(tmp_path)
    assert run_here(example, "--help", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out.startswith(f"usage: {example}")
    assert list(tmp_path.iterdir()) == []
