"""The examples run as programs and do what their first lines promise."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env
from transformers import AutoModelForCausalLM

from ..training.launching import deepspeed_variables
from .example_runs import ROOT, check_folder, command, read_summary, run


def test_an_interrupt_leaves_a_checkpoint_and_a_partial_summary(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("calculator.py", "--seed", "4", "--steps", "500"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        assert process.stdout is not None
        printed: list[str] = []
        try:
            for line in process.stdout:  # the first step is reported as soon as it is over
                printed.append(line)
                if line.startswith("step 1/500"):
                    process.send_signal(signal.SIGINT)
        except BaseException:  # for example pytest's timeout
            process.kill()
            raise
    assert process.returncode == 0, "".join(printed)
    assert any("a second signal quits at once" in line for line in printed)

    folder = tmp_path / "runs" / "calculator-grpo-seed4"
    summary = check_folder(folder, algorithm="grpo", seed=4, steps=read_summary(folder)["steps"])
    assert summary["interrupted"] is True
    assert 1 <= summary["steps"] < 500
    [checkpoint] = folder.glob("checkpoint-*")
    assert checkpoint.name == f"checkpoint-{summary['steps']}"
    assert (checkpoint / "optimizer.pt").is_file()
    assert AutoModelForCausalLM.from_pretrained(checkpoint).num_parameters() < 1_000_000


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


def test_the_code_agent_needs_a_box(tmp_path: Path) -> None:
    done = subprocess.run(command("code_agent.py", "--boxes", "0"), cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--boxes must be at least 1, got 0" in done.stderr


def test_the_code_agent_needs_an_engine_and_says_so_at_once(tmp_path: Path) -> None:
    done = subprocess.run(
        command("code_agent.py"),
        cwd=tmp_path,
        env={**os.environ, "DOCKER_HOST": "unix:///nowhere"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    [said] = done.stderr.splitlines()
    assert said.startswith("error: no container engine answers at unix:///nowhere")
    assert "apt-get install docker.io" in said
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_every_example_explains_itself(example: str, tmp_path: Path) -> None:
    first, *_ = (ROOT / "examples" / example).read_text().split('"""')[1:]
    assert f"python examples/{example}" in first
    assert "usage:" in run(example, "--help", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
