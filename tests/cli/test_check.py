"""`gymnast check`: each fault is found in an environment that has exactly this one."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from gymnast.cli.checks import leaks
from gymnast.cli.checks.catalogue import CHECKS, check_environment
from gymnast.cli.checks.episodes import (
    deterministic,
    episodes_are_apart,
    group_members_begin_alike,
    gymnasium_contract,
    has_an_end,
    plays,
)
from gymnast.cli.checks.farms import rewards_cannot_be_farmed
from gymnast.cli.checks.leaks import leaves_nothing
from gymnast.cli.checks.model import check_model
from gymnast.cli.checks.rewards import files_are_out_of_reach, null_agent_earns_nothing, oracle_is_best, rewards_differ
from gymnast.cli.checks.subject import Subject
from gymnast.cli.checks.tools import (
    does_not_block,
    has_timeouts,
    hostile_calls,
    invalid_calls,
    schemas,
    servers_keep_episodes_apart,
    tools_of_rows,
    valid_calls,
)
from gymnast.cli.terminal.verdicts import Finding
from gymnast.envs import ScriptedPolicy, ToolEnv
from gymnast.envs.adapters import GymnasiumEnv, MCPTools
from gymnast.envs.runtime.threads import run_in_loop
from gymnast.trainer.testing.tiny import CHAT_TEMPLATE, make_tiny_model, make_tiny_tokenizer

from ..envs.mcp_servers import PROCESS, make_server, served_over_http
from . import broken
from .running import Run

Check = Callable[[Subject], Finding]

WITHOUT_TOOLS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\n' if add_generation_prompt }}"
)


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    broken.LeaksThreads.stop.set()
    broken.LeaksThreads.stop = threading.Event()
    while broken.LeaksDescriptors.files:
        broken.LeaksDescriptors.files.pop().close()


def subject_of(environment: type, oracle: object = broken.oracle) -> Subject:
    policy = ScriptedPolicy(cast(Any, oracle)) if callable(oracle) else None
    return Subject(environment=environment, rows=broken.ROWS, oracle=policy, max_turns=4)


def test_a_sound_environment_passes_every_check() -> None:
    found = check_environment(subject_of(broken.Sound))
    assert {name for name, finding in found.items() if finding.outcome != "pass"} == {"rows' tools"}
    assert found["rows' tools"] == ("skip", "no row has a column 'tools'")
    assert found.keys() == {"plays", *CHECKS}


@pytest.mark.parametrize(
    ("environment", "check", "outcome", "advice"),
    [
        (broken.CrashInInit, plays, "fail", "in create: RuntimeError: no disk"),
        (broken.CrashInReset, plays, "fail", "in reset: RuntimeError: no disk"),
        (broken.CrashInReply, plays, "fail", "in step: RuntimeError: no disk"),
        (broken.CrashInGrade, plays, "fail", "in grade: RuntimeError: no disk"),
        (broken.CrashInClose, plays, "fail", "the environment does not close: close: RuntimeError: no disk"),
        (broken.ResetWithoutInfo, plays, "fail", "must return (messages, info)"),
        (broken.IgnoresSeed, gymnasium_contract, "fail", "gymnasium.utils.env_checker: AssertionError"),
        (broken.NotDeterministic, deterministic, "fail", "draw from self.np_random"),
        (broken.PromptsOfAGroupDiffer, group_members_begin_alike, "fail", "begin with different prompts"),
        (broken.FirstWordsOfAGroupDiffer, group_members_begin_alike, "fail", "begin with different prompts"),
        (broken.TasksDifferInTheirFirstWords, group_members_begin_alike, "pass", ""),
        (broken.IgnoresTheRow, group_members_begin_alike, "warn", "does reset read the row?"),
        (broken.SharesState, episodes_are_apart, "fail", "do episodes share a class attribute"),
        (broken.UntypedArgument, schemas, "warn", "note(text) may be anything"),
        (broken.TerseTool, schemas, "warn", "no more than a word or two about note"),
        (broken.ForgetsTheMark, schemas, "warn", "there are no tools, but note could be: mark each tool with @tool"),
        (broken.RaisesForValid, valid_calls, "warn", "raised KeyError"),
        (broken.TellsTheModel, valid_calls, "pass", "told of a mistake in 3 of them, the first: note("),
        (broken.Hangs, valid_calls, "fail", "timed out"),
        (broken.RefusesFitting, valid_calls, "fail", "failed the episode, in step: BrokenEnvironmentError"),
        (broken.CrashOnWrongCall, invalid_calls, "fail", "a call of an unknown tool failed the episode"),
        (broken.CrashOnHostile, hostile_calls, "fail", "note with a very long text failed the episode"),
        (broken.NoTimeout, has_timeouts, "warn", "note, answer may hang for ever"),
        (broken.RewardsSilence, null_agent_earns_nothing, "fail", "an agent that says nothing earns 0.5"),
        (broken.HugeReward, rewards_differ, "warn", "so large a reward drowns others"),
        (broken.ReadsFiles, files_are_out_of_reach, "fail", "shows a file of this machine"),
        (broken.LeaksDescriptors, leaves_nothing, "fail", "descriptors open"),
        (broken.LeaksThreads, leaves_nothing, "fail", "threads open"),
        (broken.LeaksThreadsWhileOthersEnd, leaves_nothing, "fail", "threads open"),
    ],
)
def test_a_fault_is_found(environment: type, check: Check, outcome: str, advice: str) -> None:
    found = check(subject_of(environment))
    assert found.outcome == outcome, found
    assert advice in found.advice


@pytest.mark.parametrize(
    ("environment", "oracle", "outcome", "advice"),
    [
        (broken.RewardsTaking, broken.oracle_that_takes, "warn", 'take(thing="lamp") and drop(it="lamp") again and '
         "again earns 3 in 24 turns, the oracle 1.25 (in "),
        (broken.RewardsTakingOnce, broken.oracle_that_takes, "pass", "1 rewarded calls do not pay when repeated"),
        (broken.RewardsNotes, None, "warn", "the best episode that came to its end"),
        (broken.Sound, broken.oracle, "pass", "no call is rewarded before an episode's last one"),
        (broken.Sound, None, "skip", "give --oracle"),
    ],
)  # fmt: skip
def test_calls_that_pay_again_and_again_are_found(environment: type, oracle: Any, outcome: str, advice: str) -> None:
    found = rewards_cannot_be_farmed(subject_of(environment, oracle))
    assert found.outcome == outcome, found
    assert advice in found.advice


@pytest.mark.parametrize("environment", [broken.CrashInInit, broken.NoEnd])
def test_a_check_that_could_not_look_says_skip(environment: type) -> None:
    found = check_environment(subject_of(environment, oracle=None))
    if environment is broken.CrashInInit:
        assert {name for name, finding in found.items() if finding.outcome != "skip"} == {"plays"}
        assert found.keys() == {"plays", *CHECKS}
    else:
        looks_at_tools = {
            "schemas",
            "rows' tools",
            "valid calls",
            "invalid calls",
            "hostile calls",
            "time-outs",
            "files",
        }
        assert looks_at_tools <= {name for name, finding in found.items() if finding.outcome == "skip"}


def test_a_check_plays_with_copies_of_the_rows() -> None:
    rows = [{"deck": [number], "tools": ["note", "answer"]} for number in range(1, 4)]
    subject = Subject(environment=broken.ChangesItsRow, rows=rows, all_rows=rows, max_turns=2)
    for check in (gymnasium_contract, servers_keep_episodes_apart, has_an_end, tools_of_rows, plays):
        assert check(subject).outcome != "fail"
    assert [row["deck"] for row in rows] == [[1], [2], [3]]


@pytest.mark.parametrize(
    "wrong", ["anser", {"type": "function", "function": {"name": "anser"}}], ids=["name", "schema"]
)
def test_a_row_that_chooses_a_tool_that_is_not_there_is_found(wrong: Any) -> None:
    rows = [{**broken.ROWS[0], "tools": tools} for tools in (None, ["answer"], [wrong])]
    subject = Subject(environment=broken.Sound, rows=broken.ROWS, all_rows=rows)
    found = tools_of_rows(subject)
    assert found.outcome == "fail"
    assert (
        "row 2 (the first is 0) cannot be played, in reset: ValueError: the row's 'tools' of Sound: there is no tool"
        in found.advice
    )
    subject.all_rows = rows[:2]
    assert tools_of_rows(subject).advice == "1 of 2 rows choose tools, which are there"


def test_a_server_that_cannot_tell_episodes_apart_is_found() -> None:
    def finding(server: Any, include: list[str], **options: Any) -> Finding:
        environment = ToolEnv([MCPTools(server, include, **options)])
        subject = Subject(environment=environment, rows=[{"prompt": "Count."}])
        assert plays(subject).outcome == "pass"
        return servers_keep_episodes_apart(subject)

    shared = make_server()
    with served_over_http() as url:
        for server, place in [(lambda: url, "at a URL"), (shared, "in this process")]:
            for harmless in (finding(server, ["process_id"]), finding(server, ["add"], share=True)):
                assert harmless.outcome == "pass"
            found = finding(server, ["add", "process_id"])
            assert found.outcome == "warn"
            assert f"{place} cannot tell episodes apart, so what add may change is shared by all" in found.advice
    for own in (PROCESS, make_server):
        assert finding(own, ["add"]).outcome == "pass"


def test_a_final_tool_that_reset_chooses_is_an_end() -> None:
    found = has_an_end(subject_of(broken.ChoosesItsFinalTool, oracle=None))
    assert (found.outcome, found.advice) == ("pass", "a final tool ends the episode")


def test_rows_that_differ_in_their_seed_alone_may_begin_alike() -> None:
    lake = Subject(environment=GymnasiumEnv("FrozenLake-v1"), rows=[{"seed": seed} for seed in range(3)])
    assert group_members_begin_alike(lake).outcome == "pass"


def test_a_fault_names_the_users_line_and_none_of_gymnasts() -> None:
    misspelt = plays(subject_of(broken.MisspellsAColumn)).advice
    assert "MissingColumnError: the row has no column 'nubmer'; it has ['number'], at " in misspelt
    assert re.search(r"broken\.py:\d+, in reset_task$", misspelt)
    assert plays(subject_of(broken.ForgetsAnArgument)).advice.endswith("a line `text: what it is.`")


def test_a_blocking_call_is_found() -> None:
    subject = subject_of(broken.Blocks)
    hostile_calls(subject)
    found = does_not_block(subject)
    assert found.outcome == "fail"
    assert "broken.py:" in found.advice


def test_a_container_that_stays_is_found(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "EPISODES", 1)  # two boxes are enough
    subject = Subject(environment=broken.LeaksContainers, rows=broken.ROWS[:1], max_turns=1)
    try:
        found = leaves_nothing(subject)
    finally:
        for box in broken.LeaksContainers.boxes:
            run_in_loop(box.close())
    assert found.outcome == "fail"
    assert "open: close in close() all that reset opens" in found.advice


NEIGHBOUR = """
import sys
from gymnast.envs.runtime.threads import run_in_loop
from gymnast.sandbox import DockerExecutor
boxes = []
for line in sys.stdin:
    boxes.append(DockerExecutor())
    run_in_loop(boxes[-1].start())
    print("started", flush=True)
for box in boxes:
    run_in_loop(box.close())
"""


def test_containers_of_other_programs_are_not_counted(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "EPISODES", 1)
    command = [sys.executable, "-c", NEIGHBOUR]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as neighbour:
        monkeypatch.setattr(broken.NeighbourHasContainers, "neighbour", neighbour, raising=False)
        subject = Subject(environment=broken.NeighbourHasContainers, rows=broken.ROWS[:1], max_turns=1)
        found = leaves_nothing(subject)
    assert found.outcome == "pass", found


def test_a_check_that_cannot_run_is_a_fault() -> None:
    assert "fail" in {found.outcome for found in check_environment(subject_of(broken.CrashInClose)).values()}


@pytest.mark.parametrize(
    ("environment", "check", "advice"),
    [
        (broken.NoEnd, has_an_end, "no answer ended an episode"),
        (broken.SameReward, rewards_differ, "every scripted agent earns -1"),
        (broken.RewardIsNeverSet, rewards_differ, "it learns nothing; does anything set self.reward"),
        (broken.NoReward, rewards_differ, "the environment gives no reward"),
    ],
)
def test_a_fault_is_found_without_an_oracle(environment: type, check: Check, advice: str) -> None:
    found = check(subject_of(environment, oracle=None))
    assert found.outcome == "warn"
    assert advice in found.advice


@pytest.mark.parametrize(
    ("environment", "oracle", "check", "advice"),
    [
        (broken.Sound, broken.wrong_oracle, oracle_is_best, "its answers are wrong, or no answer is rewarded"),
        (broken.UpsideDown, broken.oracle, oracle_is_best, "is the reward the right way up?"),
        (broken.Sound, broken.oracle_without_end, has_an_end, "ended with max_turns"),
    ],
)
def test_an_oracle_that_does_not_win_is_found(environment: type, oracle: object, check: Check, advice: str) -> None:
    found = check(subject_of(environment, oracle))
    assert found.outcome == "fail"
    assert advice in found.advice


@pytest.fixture
def tiny(tmp_path: Path) -> Any:
    """A function that saves a tiny model with these changes of its tokenizer or its config."""

    def save(template: str | None = CHAT_TEMPLATE, **config: Any) -> str:
        tokenizer = make_tiny_tokenizer([])
        tokenizer.chat_template = template
        tiny_model = make_tiny_model(tokenizer)
        for name, value in config.items():
            setattr(tiny_model.config, name, value)
        tiny_model.config.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        return str(tmp_path)

    return save


def test_a_model_that_fits(tiny: Any) -> None:
    found = check_model(tiny(), subject_of(broken.Sound))
    assert {finding.outcome for finding in found.values()} == {"pass"}
    assert found["model: tool format"].advice.startswith("hermes")
    assert "'<|im_end|>'" in found["model: end of turn"].advice
    cost = found["model: first batch"].advice
    assert "8 episodes has up to" in cost
    assert re.search(r"^0\.\d million weights take \d\.\d MB in training", cost)


@pytest.mark.parametrize(
    ("changes", "check", "outcome", "advice"),
    [
        ({"template": None}, "template", "fail", "has no chat template"),
        ({"template": WITHOUT_TOOLS}, "template", "fail", "the environment has tools, ['note', 'answer'], but"),
        (
            {"template": CHAT_TEMPLATE.replace("call.name | tojson", "'tool'")},
            "template",
            "fail",
            "the environment has tools",
        ),
        ({"max_position_embeddings": 20}, "prompts", "fail", "tokens, and the model's context 20"),
        ({"max_position_embeddings": 300}, "prompts", "warn", "less than max_completion_length=256"),
    ],
)
def test_a_model_that_does_not_fit(tiny: Any, changes: dict[str, Any], check: str, outcome: str, advice: str) -> None:
    found = check_model(tiny(**changes), subject_of(broken.Sound))[f"model: {check}"]
    assert found.outcome == outcome, found
    assert advice in found.advice


def test_the_table_and_the_exit_code(run: Run) -> None:
    outcome = run("check", "gymnast/Calculator-v0", "--num-tasks", 2)
    assert outcome.code == 0
    assert "null agent" in outcome.out
    outcome = run("check", "gymnast/Calculator-v0", "--num-tasks", 2, "--json")
    assert {verdict["outcome"] for verdict in outcome.json["checks"]} == {"pass", "skip", "warn"}


def test_the_table_of_the_docs_has_every_check() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "command_line.md").read_text()
    table = text.partition("| Check | Fails or warns if |\n|---|---|\n")[2].partition("\n\n")[0]
    names = [name for line in table.splitlines() for name in re.findall(r"`([^`]+)`", line.split("|")[1])]
    assert sorted(names) == sorted(["plays", *CHECKS])
