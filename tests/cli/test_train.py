"""`gymnast train` and its run files, `gymnast init`, and `gymnast sandbox`."""

from __future__ import annotations

import json
import platform
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from transformers import AutoTokenizer

from gymnast.cli.arguments.run_file import RunFile, read_entries, to_yaml
from gymnast.records import read_episodes
from gymnast.sandbox.docker.labels import LABEL, labels
from gymnast.trainer.testing.tiny import make_tiny_model, make_tiny_tokenizer

from ..sandbox.counterfeit import EngineAnswers, counterfeit
from .running import Run

SMALL = {"num_generations": 2, "gradient_accumulation_steps": 1, "max_completion_length": 8, "max_steps": 1}
TRAIN = [f"--set={name}={value}" for name, value in SMALL.items()]
TRAIN += ["--set=use_cpu=true", "--set=save_strategy=no", "--set=report_to=none", "--set=disable_tqdm=true"]


def test_a_new_project_trains_from_the_folder_above_and_writes_its_run_down(run: Run, tmp_path: Path) -> None:
    tokenizer = make_tiny_tokenizer([])
    make_tiny_model(tokenizer).save_pretrained("guess/tiny")
    tokenizer.save_pretrained("guess/tiny")
    assert run("init", "guess").code == 0
    assert "has files that would be overwritten: guess/__init__.py, guess/environment.py" in run("init", "guess").err
    outcome = run("train", "guess/run.toml", "--model=guess/tiny", *TRAIN)
    assert outcome.code == 0, outcome.err
    folder = Path("guess/runs/guess")
    assert outcome.out.splitlines()[-2:] == [
        f"the run is in {folder}, the model in {folder}/model",
        f"gymnast why {folder} says why the reward is what it is, gymnast view {folder} shows the episodes",
    ]
    assert "gymnast why" not in outcome.err
    written = read_entries(folder / "run.yaml")
    assert (written["model"], written["environment"]) == ("./guess/tiny", "guess:GuessNumber")
    assert (written["options"]["output_dir"], written["options"]["max_steps"]) == (str(folder), 1)
    assert (folder / "model" / "config.json").exists()
    assert (folder / "metrics.jsonl").exists()


FULL_RUN = """
environment = "gymnast/Calculator-v0"
model = "tiny"
tasks = "rows.json"
eval_tasks = "rows.json"
tool_format = "react"
rewards = ["rewards.py:brevity"]
algorithm = "rloo"

[options]
output_dir = "runs/full"
num_generations = 2
gradient_accumulation_steps = 1
max_completion_length = 8
learning_rate = 2e-5
max_steps = 1
use_cpu = true
save_strategy = "steps"
save_steps = 1
eval_strategy = "steps"
eval_steps = 1
report_to = "none"
disable_tqdm = true

[lora]
r = 4
target_modules = "all-linear"
"""


def write_full_run() -> None:
    tokenizer = make_tiny_tokenizer([])
    make_tiny_model(tokenizer).save_pretrained("tiny")
    tokenizer.save_pretrained("tiny")
    Path("rows.json").write_text(json.dumps([{"question": "What is 3 times 4?", "answer": 12}]))
    Path("rewards.py").write_text("def brevity(completions, **columns):\n    return [0.25] * len(completions)\n")
    Path("full.toml").write_text(FULL_RUN)


def test_every_entry_of_a_run_file_counts_and_a_run_is_resumed(run: Run, tmp_path: Path) -> None:
    write_full_run()
    first = run("train", "full.toml", "--json")
    assert first.code == 0, first.err
    assert first.json["metrics"]["eval_episodes/played"] > 0
    assert first.json["metrics"]["rewards/brevity/mean"] == 0.25
    assert (Path(first.json["model"]) / "adapter_config.json").exists()
    assert read_entries(Path("runs/full/run.yaml")) == {**tomllib.loads(FULL_RUN), "model": "./tiny"}
    episodes = read_episodes("runs/full/episodes.jsonl")
    prompts = {AutoTokenizer.from_pretrained("tiny").decode(one.traces[0].prompt_ids) for _, one in episodes}
    assert all("Action Input:" in prompt for prompt in prompts)
    secret = RunFile(environment="game.py:Game", model="tiny", options={"hub_token": "hf_secret", "max_steps": 1})
    assert "hf_secret" not in to_yaml(secret, tmp_path)  # the file is published with the model
    as_yaml = yaml.safe_dump(tomllib.loads(FULL_RUN))
    Path("full.yaml").write_text(as_yaml.replace("learning_rate: 2.0e-05", "learning_rate: 1e-5"))
    resumed = run("train", "full.yaml", "--set=max_steps=2", "--resume", "--json")
    assert resumed.code == 0, resumed.err
    options = read_entries(Path("runs/full/run.yaml"))["options"]
    assert (options["learning_rate"], options["max_steps"], options["output_dir"]) == (1e-5, 2, "runs/full")
    steps = [json.loads(line).get("step") for line in Path("runs/full/metrics.jsonl").read_text().splitlines()]
    assert {1, 2} <= {*steps}


def test_a_model_plays(run: Run) -> None:
    write_full_run()
    play = ["play", "gymnast/Calculator-v0", "--tasks", "rows.json"]
    outcome = run(*play, "--model", "./tiny", "--max-tokens", 4, "--json")
    assert outcome.code == 0, outcome.err
    assert "What is 3 times 4?" in outcome.err
    [trace] = outcome.json["traces"]
    assert {turn["num_tokens"] for turn in outcome.json["turns"]} <= {1, 2, 3, 4}
    assert len(trace["logprobs"]) == len(trace["completion_ids"])
    for arguments, message in {
        ("--model", "./tiny", "--policy", "a.py:b"): "--policy a.py:b and --model ./tiny would both play",
        ("--max-tokens", 4): "--tool-format and --max-tokens are for a model: give --model",
    }.items():
        refused = run(*play, *arguments)
        assert (refused.code, message in refused.err) == (2, True), refused.err


def test_a_run_file_may_name_several_data_sets_to_evaluate(run: Run, tmp_path: Path) -> None:
    write_full_run()
    several = {"easy": "rows.json", "not so easy": "rows.json"}
    single = 'eval_tasks = "rows.json"\n'
    assert single in FULL_RUN
    table = "".join(f'"{name}" = "{rows}"\n' for name, rows in several.items())
    Path("full.toml").write_text(f"{FULL_RUN.replace(single, '')}\n[eval_tasks]\n{table}")
    outcome = run("train", "full.toml", "--json")
    assert outcome.code == 0, outcome.err
    for name in several:
        assert f"evaluation on {name} at step 1" in outcome.err
        assert outcome.json["metrics"][f"eval_{name}_episodes/played"] == 2
    assert read_entries(Path("runs/full/run.yaml"))["eval_tasks"] == several


@pytest.mark.parametrize(
    ("file", "arguments", "message"),
    [
        ("model = 'm'", [], "the run has no environment: set it in the file or with --model"),
        ("environment = 'e.py:E'", [], "the run has no model: set it in the file or with --model"),
        ("environment = ", [], "run.toml is not TOML: "),
        ("environment = 3", [], "run.toml: environment must be a text, got 3"),
        ("tasks = ['rows.json']", [], "run.toml: tasks must be a text, got ['rows.json']"),
        ("options = 3", [], "run.toml: options must be a table, [options], got 3"),
        ("lora = 'yes'", [], "run.toml: lora must be a table, [lora], got 'yes'"),
        ("environment = 'e.py:E'\nmodel = 'm'", ["--set", "bf16=False"], "values are those of TOML: write bf16=false"),
    ],
)
def test_runs_that_cannot_be_read(run: Run, tmp_path: Path, file: str, arguments: list[str], message: str) -> None:
    (tmp_path / "run.toml").write_text(file)
    outcome = run("train", "run.toml", *arguments)
    assert outcome.code == 2
    assert message in outcome.err


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("environment: [", "run.yaml is not YAML: while parsing"),
        ("- environment", "run.yaml is not YAML: expected names and values, got list"),
        ("1: 2", "run.yaml: a run has no 1, it has environment"),
    ],
)
def test_yaml_that_is_no_run(run: Run, tmp_path: Path, file: str, message: str) -> None:
    (tmp_path / "run.yaml").write_text(file)
    outcome = run("train", "run.yaml")
    assert (outcome.code, message in outcome.err) == (2, True), outcome.err


def test_the_doctor_finds_neither_an_engine_nor_bubblewrap(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such.sock")
    monkeypatch.setenv("PATH", "/nowhere")
    outcome = run("sandbox", "doctor", "--json")
    bubblewrap, engine = outcome.json["checks"]
    assert (bubblewrap["outcome"], bubblewrap["advice"][:21]) == ("skip", "bubblewrap is missing")
    assert (outcome.code, engine["name"], engine["outcome"]) == (1, "engine", "fail")
    assert "no container engine answers at unix:///no/such.sock" in engine["advice"]
    assert run("sandbox", "list").code == 2


@pytest.mark.usefixtures("bubblewrap")
def test_the_doctor_tries_bubblewrap_where_no_engine_answers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such.sock")
    outcome = run("sandbox", "doctor", "--json")
    outcomes = {check["name"]: check["outcome"] for check in outcome.json["checks"]}
    assert outcome.code == 0
    assert outcomes == {"engine": "warn", **dict.fromkeys(("bubblewrap", "box", "code", "network", "reset"), "pass")}
    assert "do not hold Limits.cpus, Limits.max_inodes" in outcome.json["checks"][0]["advice"]


class Idle(EngineAnswers):
    """An engine without containers."""

    def do_GET(self) -> None:
        answers = {"version": {"ApiVersion": "1.41"}, "info": {"SystemTime": "2026-01-01T00:00:00.0Z"}}
        self.answer(200, answers.get(self.path.rpartition("/")[2], []))


def test_an_engine_without_containers_has_no_table(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with counterfeit(Idle, tmp_path, monkeypatch):
        assert run("sandbox", "list") == (0, "this engine has no containers of gymnast\n", "")


def test_containers_of_dead_processes_are_listed_and_reaped(
    run: Run, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "node", lambda: "the-host-of-this-test")  # no other process reaps this host's
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead = labels(3600) | {f"{LABEL}.pid": str(ended.pid)}
    options = [part for name, value in dead.items() for part in ("--label", f"{name}={value}")]
    created = subprocess.run(["docker", "create", *options, image], capture_output=True, text=True, check=True)
    found = {container["id"]: container for container in run("sandbox", "list", "--json").json["containers"]}
    abandoned = found[created.stdout.strip()]
    assert (abandoned["is_abandoned"], abandoned["is_own"]) == (True, False)
    assert abandoned["name"] in run("sandbox", "list").out
    assert abandoned["name"] in run("sandbox", "reap", "--json").json["removed"]
    left = run("sandbox", "list", "--json").json["containers"]
    assert abandoned["id"] not in [row["id"] for row in left]


def test_the_doctor_tries_a_box(run: Run, image: str) -> None:
    outcome = run("sandbox", "doctor", "--json")
    outcomes = {check["name"]: check["outcome"] for check in outcome.json["checks"]}
    assert outcome.code == 0
    assert [*outcomes] == ["bubblewrap", "engine", "image", "box", "code", "network", "reset", "containers"]
    assert outcomes["code"] == outcomes["network"] == "pass"
