"""`gymnast export --to atif`: trajectories with the exact tokens of a real training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gymnast.cli.exporting.turns import turn_tokens
from gymnast.envs import Episode, Message, StopReason, ToolCall
from gymnast.records import read_episodes

from ..envs.pictures import picture
from ..training.buttons import forget, make_trainer
from .made_runs import episode, write_run
from .running import Run


@pytest.fixture(scope="module", params=["one trace", "a trace for each turn"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    compact = None if request.param == "one trace" else forget
    make_trainer(folder, compact=compact, max_steps=2, log_episodes_steps=1).train()
    return folder


def exported(run: Run, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    outcome = run("export", folder, "--to", "atif", "-o", "out", "--json", *arguments)
    assert outcome.code == 0, outcome.err
    found = [json.loads(path.read_text()) for path in sorted(Path("out").glob("*.json"))]
    assert outcome.json == {"path": "out", "episodes": len(found)}
    return found


def test_trajectories_hold_the_exact_tokens(run: Run, trained: Path) -> None:
    episodes = {
        f"{step + 1}:{item.spec.group}:{item.spec.member}": item
        for step, item in read_episodes(trained / "episodes.jsonl")
    }
    trajectories = exported(run, trained)
    assert {trajectory["session_id"] for trajectory in trajectories} == episodes.keys()
    for trajectory in trajectories:
        played = episodes[trajectory["session_id"]]
        agent = [step for step in trajectory["steps"] if step["source"] == "agent"]
        assert len(agent) == len(played.turns)
        sampled = [
            place
            for trace in played.traces
            for place in zip(trace.mask, trace.completion_ids, trace.logprobs, strict=True)
        ]
        expected = [(token, logprob) for mask, token, logprob in sampled if mask]
        metrics = [step["metrics"] for step in agent]
        ids = [token for each_metrics in metrics for token in each_metrics["completion_token_ids"]]
        logprobs = [value for each_metrics in metrics for value in each_metrics["logprobs"]]
        assert [*zip(ids, logprobs, strict=True)] == expected
        for step, turn in zip(agent, played.turns, strict=True):
            assert (
                len(step["metrics"]["prompt_token_ids"]) == step["metrics"]["prompt_tokens"] == turn.num_prompt_tokens
            )
            assert step["metrics"]["completion_tokens"] == turn.num_tokens
        assert trajectory["extra"]["reward"] == played.reward
        assert trajectory["extra"]["stop"] == played.stop.value


def test_a_trajectory_has_the_fields_of_the_format(run: Run, trained: Path) -> None:
    for trace in exported(run, trained, "--step", "2"):
        assert trace["extra"]["training_step"] == 2
        assert trace.keys() == {"schema_version", "session_id", "agent", "steps", "final_metrics", "extra"}
        assert trace["schema_version"] == "ATIF-v1.8"
        assert {"name", "version", "model_name", "tool_definitions"} == trace["agent"].keys()
        assert [step["step_id"] for step in trace["steps"]] == list(range(1, len(trace["steps"]) + 1))
        for step in trace["steps"]:
            assert step["source"] in ("system", "user", "agent")
            assert isinstance(step["message"], str)
            calls = {call["tool_call_id"] for call in step.get("tool_calls", [])}
            results = [result["source_call_id"] for result in step.get("observation", {"results": []})["results"]]
            assert set(results) == calls
            assert (step["source"] == "agent") or not {"tool_calls", "metrics", "observation"} & step.keys()
        assert trace["final_metrics"]["total_steps"] == len(trace["steps"])


def test_unusual_messages_are_exported(run: Run, tmp_path: Path) -> None:
    odd: Episode = episode(reward=None, stop=StopReason.FAILED)
    odd.prompt.insert(
        0, {"role": "system", "content": [{"type": "text", "text": "be "}, {"type": "image", "url": "x"}]}
    )
    turn = odd.turns[0]
    calls: list[ToolCall] = [
        {"function": {"name": "look", "arguments": '{"where": "up"}'}},  # without an id
        {"function": {"name": "look", "arguments": "{broken"}},
    ]
    turn.message = {"role": "assistant", "content": None, "reasoning_content": "hmm", "tool_calls": calls}
    more: list[Message] = [
        {"role": "tool", "content": "no"},
        {"role": "tool", "content": "unread"},
        {"role": "user", "content": "well?"},
    ]
    turn.observation = [*turn.observation, *more]
    seen = picture()
    odd.prompt[-1]["content"] = [{"type": "text", "text": "look at "}, {"type": "image", "image": seen}]
    odd.traces = []
    write_run(tmp_path / "made", [(0, odd)])
    [found] = exported(run, tmp_path / "made")
    system, user, agent, reply = found["steps"]
    assert (system["source"], system["message"]) == ("system", "be [image]")
    name = f"images/{seen.file_name}"
    source = {"media_type": "image/png", "path": name}
    assert user["message"] == [{"type": "text", "text": "look at "}, {"type": "image", "source": source}]
    assert (tmp_path / "out" / name).read_bytes() == seen.data
    assert (reply["source"], reply["message"]) == ("user", "well?")
    assert agent["message"] == ""
    assert agent["reasoning_content"] == "hmm"
    assert [call["arguments"] for call in agent["tool_calls"]] == [{"where": "up"}, {"arguments": "{broken"}]
    first, second, unread = agent["observation"]["results"]
    assert [first["source_call_id"], second["source_call_id"]] == [call["tool_call_id"] for call in agent["tool_calls"]]
    assert unread == {"content": "unread"}
    assert "completion_token_ids" not in agent["metrics"]
    assert found["extra"]["failure"] == "step: OSError: the disk is full"
    assert turn_tokens(odd) == [None]


def test_evaluations_of_a_training_are_exported(run: Run, tmp_path: Path) -> None:
    made = write_run(tmp_path / "made", [(0, episode())], evaluations=[(0, episode(group="held@0")), (2, episode())])
    write_run(made, evaluations=[(2, episode())], title="eval_hard")
    [found] = exported(run, made, "--evaluations", "--step", "0")
    every = exported(run, made, "--evaluations")
    names = [found["session_id"], "2:eval_hard:a@0:0", "2:evaluation:a@0:0"]
    assert [trajectory["session_id"] for trajectory in every] == names
    assert run("export", made, "--to", "atif", "--evaluations").code == 0
    assert (len([*made.glob("atif-evaluations/*.json")]), (made / "atif").exists()) == (3, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "atif", "--step", "7"], "step 7 is not recorded; the steps are 1"),
        (["--to", "inspect", "-o", "log.txt"], "a log of Inspect is a file that ends with .eval or .json, got log.txt"),
    ],
)
def test_what_cannot_be_exported_is_refused(run: Run, tmp_path: Path, arguments: list[str], message: str) -> None:
    write_run(tmp_path / "made", [(0, episode())])
    outcome = run("export", "made", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert "made has no evaluated episodes" in run("export", "made", "--to", "atif", "--evaluations").err
    write_run(tmp_path / "empty", metrics=[{"step": 1, "reward": 0.0}])
    assert "log_episodes_steps=1" in run("export", "empty", "--to", "atif").err
