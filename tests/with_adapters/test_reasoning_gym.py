"""`ReasoningGymEnv` asks reasoning-gym's questions and scores by its scorers."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from gymnast.envs import ConfigurationError, RolloutEngine, ScriptedPolicy, StopReason
from gymnast.envs.adapters import ReasoningGymEnv

reasoning_gym: Any = importlib.import_module("reasoning_gym")


def say(text: str) -> Any:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize("name", ["chain_sum", "sudoku", "countdown", "number_sorting"])
def test_the_right_answers_get_the_data_sets_own_score(name: str) -> None:
    data = reasoning_gym.create_dataset(name, size=4, seed=5)
    answers = {data[index]["question"]: data[index]["answer"] for index in range(4)}

    def oracle(conversation: Any) -> Any:
        question = conversation[0]["content"].partition("\n\nWrite the final answer")[0]
        return say(f"<answer>no</answer> or rather <answer>{answers[question]}</answer>")

    environment = ReasoningGymEnv(data)
    episodes = RolloutEngine(environment, ScriptedPolicy(oracle)).play(environment.rows)
    assert [episode.reward for episode in episodes] == [1.0] * 4
    assert {episode.stop for episode in episodes} == {StopReason.MODEL_STOPPED}
    for text in ("<answer>no</answer>", "I do not know"):
        [episode] = RolloutEngine(environment, ScriptedPolicy([say(text)])).play(environment.rows[:1])
        answer = "no" if "no</answer>" in text else None
        assert episode.reward == data.score_answer(answer, data[0]) < 0.5
        assert episode.metrics["answered"] == float(answer is not None)


def test_a_question_without_a_reply_is_not_answered() -> None:
    environment = ReasoningGymEnv(reasoning_gym.create_dataset("chain_sum", size=1, seed=5))
    environment.reset(options={"task": environment.rows[0]})
    assert environment.metrics == {"answered": 0.0}


def test_an_answer_in_parts_of_content_is_an_answer() -> None:
    data = reasoning_gym.create_dataset("chain_sum", size=1, seed=5)
    message: Any = {"role": "assistant", "content": [{"type": "text", "text": f"<answer>{data[0]['answer']}</answer>"}]}
    environment = ReasoningGymEnv(data)
    [episode] = RolloutEngine(environment, ScriptedPolicy([message])).play(environment.rows)
    assert (episode.reward, episode.metrics["answered"]) == (1.0, 1.0)


def test_rows_of_another_data_set_are_refused() -> None:
    rows = ReasoningGymEnv(reasoning_gym.create_dataset("chain_sum", size=2, seed=1)).rows
    other = ReasoningGymEnv(reasoning_gym.create_dataset("chain_sum", size=2, seed=2))
    with pytest.raises(ConfigurationError, match=r"row \d has another question than the data set"):
        RolloutEngine(other, ScriptedPolicy([say("x")])).play(rows)
    messages, _ = other.reset(seed=0)
    assert str(messages[0].get("content")).startswith("State the final answer")
