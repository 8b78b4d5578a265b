"""The example that trains the pretrained model: its problems, and demonstrations that look as its episodes do."""

from __future__ import annotations

import argparse
import random
import re
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import Message, RolloutEngine, ScriptedPolicy, tool_call
from gymnast.trainer import ChatFormat

from ..importing import benchmark
from ..programs.example_runs import names_of

EXAMPLE = names_of("word_problems.py")
WORLDS = [EXAMPLE["SHOWN"], EXAMPLE["NEW"]]


def problems(world: Any, count: int = 300) -> list[dict[str, Any]]:
    rng = random.Random(1)
    return [EXAMPLE["problem"](world, rng) for _ in range(count)]


def test_held_out_problems_share_no_sentence_and_no_number_with_training() -> None:
    def sentences(tasks: list[dict[str, Any]]) -> set[str]:
        names = re.compile(r"\b(" + "|".join(name for world in WORLDS for name in world.names + world.things) + r")\b")
        bare = (re.sub(r"\d+", "7", names.sub("it", task["prompt"])) for task in tasks)
        return {sentence for text in bare for sentence in re.split(r"(?<=[.?]) ", text)}

    shown, new = (problems(world) for world in WORLDS)
    assert not sentences(shown) & sentences(new)
    numbers = [{number for task in tasks for number in re.findall(r"\d+", task["prompt"])} for tasks in (shown, new)]
    assert not numbers[0] & numbers[1]


@pytest.mark.parametrize("world", WORLDS, ids=["shown", "new"])
def test_problems_have_one_to_three_steps_and_the_right_answer(world: Any) -> None:
    tasks = problems(world)
    assert {len(task["signs"]) for task in tasks} == {1, 2, 3}
    assert {len(re.findall(r"\d+", task["prompt"])) - len(task["numbers"]) for task in tasks} == {0, 1}
    for task in tasks:
        total, *others = task["numbers"]
        for sign, number in zip(task["signs"], others, strict=True):
            total = {"+": total + number, "-": total - number, "*": total * number}[sign]
            assert total >= 0
        assert total == task["answer"]


@pytest.mark.parametrize(("answer", "reward"), [("{answer}", 1.0), ("{answer}1", 0.0)])
def test_only_the_right_answer_is_rewarded(answer: str, reward: float) -> None:
    [task] = problems(EXAMPLE["NEW"], 1)
    given = int(answer.format(answer=task["answer"]))
    script = [tool_call("calculate", expression="7 * 8 - 2"), tool_call("final_answer", answer=given)]
    [episode] = RolloutEngine(EXAMPLE["WordProblems"](), ScriptedPolicy(script)).play([task])
    assert episode.reward == episode.metrics["success"] == reward
    assert episode.messages[2].get("content") == "54"


@pytest.mark.parametrize("text", ["9 ** 9 ** 9", "__import__('os')", "1 / 0", "7 +", "2 (3)", "()", "1" * 80])
def test_the_calculator_takes_sums_and_products_only(text: str) -> None:
    script = [tool_call("calculate", expression=text), tool_call("final_answer", answer=0)]
    [episode] = RolloutEngine(EXAMPLE["WordProblems"](), ScriptedPolicy(script)).play(problems(WORLDS[0], 1))
    assert [call.outcome for call in episode.tool_calls] == ["refused", "ok"]


def test_demonstrations_have_the_tokens_of_episodes(tokenizer: Any) -> None:
    system: Any
    shown: list[Any]
    [system, *shown], _ = EXAMPLE["demonstration"](random.Random(1))
    chat = ChatFormat(tokenizer, tool_format=EXAMPLE["BriefFormat"]())
    tools = EXAMPLE["WordProblems"]().tool_schemas()
    prompt = chat.prompt_tokens(shown[:1], tools)
    assert prompt.ids == tokenizer.apply_chat_template([system, shown[0]], add_generation_prompt=True)["input_ids"]
    ids = list(prompt.ids)
    for written in (shown[1], shown[3]):
        answer_ids = tokenizer(written["content"] + tokenizer.eos_token).input_ids
        message: Any = chat.parse(prompt, answer_ids, tools)
        [call] = message["tool_calls"]
        assert EXAMPLE["written"](call["function"]["name"], **call["function"]["arguments"]) == written["content"]
        ids += answer_ids
        if written is shown[1]:
            result: Message = {
                "role": "tool",
                "name": "calculate",
                "content": shown[2]["content"].removeprefix("Observation: "),
            }
            ids += chat.observation_tokens([result], ended_by=answer_ids[-1], last=False).ids
    assert tokenizer.decode(ids) + "\n" == tokenizer.apply_chat_template([system, *shown], tokenize=False)


def test_demonstrations_that_are_interrupted_begin_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(EXAMPLE["show"].__globals__, "warm_up", interrupt)
    model = str(benchmark("pretrained").model_folder())
    options = {"model": model, "seed": 1, "steps": 1, "learning_rate": 1e-5, "no_demonstrations": False}
    with pytest.raises(KeyboardInterrupt):
        EXAMPLE["show"](argparse.Namespace(**options), tmp_path / "run" / "start")
    assert not (tmp_path / "run" / "start").exists()  # else the next run would take it for the model that is to learn
