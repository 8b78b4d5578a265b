"""Environments that give the first words of the model's answer: the episode has one answer, which begins with them."""

from __future__ import annotations

from typing import Any

import pytest

from gymnast.envs import Environment, Episode, Message, StepResult, StopReason, tool_call

from .episodes import play_one, say

QUESTION: Message = {"role": "user", "content": "What is 6 * 7?"}
WORDS = say("The answer is")


class Begun(Environment):
    """Begins the model's answer, and replies to it."""

    def __init__(self, *first: Message, reply: Message = QUESTION) -> None:
        super().__init__()
        self.first = list(first)
        self.reply = reply
        self.actions: list[Message] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.first, {}

    def step(self, action: Message) -> StepResult:
        self.actions.append(action)
        over = len(self.actions) == 2
        return StepResult([] if over else [self.reply], 1.0, over, False, {})


async def test_a_scripts_first_answer_is_the_rest() -> None:
    environment, seen = Begun(QUESTION, WORDS), []

    def answer(messages: list[Message]) -> str:
        seen.append([message.get("content") for message in messages])
        return " 42."

    episode = await play_one(lambda: environment, answer)
    whole = say("The answer is 42.")
    assert episode.messages == [QUESTION, whole, QUESTION, say(" 42.")]
    assert environment.actions == [whole, say(" 42.")]
    assert (episode.prompt, episode.first_words) == ([QUESTION], WORDS)
    assert seen == [["What is 6 * 7?", "The answer is"], ["What is 6 * 7?", "The answer is 42.", "What is 6 * 7?"]]
    assert Episode.from_json(episode.to_json()) == episode
    assert str(episode).count("The answer is") == 1


async def test_the_rest_of_an_answer_may_be_a_call() -> None:
    parts: Message = {"role": "assistant", "content": [{"type": "text", "text": "I add: "}]}
    filled: Any = {**parts, "reasoning_content": None, "tool_calls": None}  # as a row of an Arrow table
    for words in (parts, filled):
        episode = await play_one(lambda words=words: Begun(QUESTION, words), [tool_call("add", a=1, b=2), "3"])
        assert episode.turns[0].message == {**tool_call("add", a=1, b=2), "content": "I add: "}


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (tool_call("add", a=1, b=2), "has tool_calls, which are whole already; let the results of these calls follow"),
        (say(""), "has no text; leave the message out"),
        ({"role": "assistant", "content": [{"type": "audio"}]}, "has parts that are not text"),
    ],
)
async def test_a_message_that_cannot_be_continued_fails_the_reset(last: Message, error: str) -> None:
    episode = await play_one(lambda: Begun(QUESTION, last), ["42"])
    assert episode.failure is not None
    assert str(episode.failure) == (
        f"reset: ValueError: Begun.reset() ended with a message of the assistant, with which the answer begins, but it "
        f"{error}"
    )


async def test_only_a_reset_gives_first_words() -> None:
    episode = await play_one(lambda: Begun(QUESTION, reply=WORDS), ["41", "42"])
    assert episode.stop is StopReason.FAILED
    assert episode.failure is not None
    assert episode.failure.stage == "step"
    assert "Only the messages of reset() may end with the words that the model goes on with" in episode.failure.message


async def test_first_words_of_an_answer_that_never_came_are_shown() -> None:
    def breaks(messages: list[Message]) -> str:
        raise RuntimeError("no model")

    episode = await play_one(lambda: Begun(QUESTION, WORDS), breaks)
    assert episode.messages == [QUESTION, WORDS]
