"""Every episode survives JSON."""

from __future__ import annotations

import collections
import datetime
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gymnast.envs import (
    Calculator,
    Episode,
    EpisodeSpec,
    Failure,
    Message,
    StopReason,
    Task,
    TokenTrace,
    ToolCallRecord,
    Turn,
    tool_call,
    tool_calls,
)
from gymnast.envs.tokens import ImageSpan, Tokens

from .episodes import ANSWER, Log, Probe, play_one, specs
from .pictures import picture


async def test_an_episode_survives_json() -> None:
    episode = await play_one(Calculator(), [tool_calls(("add", {"a": 1, "b": 2}), ("no", {})), ANSWER])
    episode.traces = [TokenTrace(prompt_ids=[1, 2]), TokenTrace(prompt_ids=[6])]
    episode.traces[0].append_sampled([3, 4], [-0.5, float("-inf")])
    episode.traces[0].append_observation(Tokens([5]))
    episode.traces[1].append_sampled([7], [-0.25])
    episode.metrics["odd"] = float("inf")
    episode.close_failure = Failure.of("close", ValueError("a lone \ud800 surrogate"))
    text = episode.to_json()
    assert "\n" not in text
    assert '{"prompt_ids":[6],"completion_ids":[7],"mask":[1],"logprobs":[-0.25],"drift":0}' in text
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    again = Episode.from_json(text)
    assert again == episode
    assert json.loads(again.to_json()) == json.loads(text)
    assert isinstance(again.stop, StopReason)
    assert isinstance(again.turns[0], Turn)
    assert isinstance(again.tool_calls[0], ToolCallRecord)


def test_the_images_of_a_trace_survive_json() -> None:
    image = picture()
    trace = TokenTrace.of(Tokens([1, 2, 3], (ImageSpan(1, 2, image),)))
    again = Episode.from_json(Episode(spec=specs(1)[0], traces=[trace]).to_json())
    assert again.traces == [trace]
    assert again.traces[0].images[0].image.data == image.data


@pytest.mark.parametrize("text", ["a cat", "a lone \ud800 surrogate"])
def test_an_image_in_a_message_is_written_as_base64(text: str) -> None:
    image = picture()
    parts = [{"type": "text", "text": text, "\udc00": ("\udc00",)}, {"type": "image", "image": image}]
    episode = Episode(spec=specs(1)[0], prompt=[{"role": "user", "content": parts}], metrics={"odd": math.inf})
    again = Episode.from_json(episode.to_json())
    kept: Any = again.prompt[0].get("content")
    assert kept[0] == {"type": "text", "text": text.replace("\ud800", "\\ud800"), "\\udc00": ["\\udc00"]}
    assert kept[1] == {"type": "image", "image": image}
    assert again.metrics == {"odd": math.inf}


async def test_a_failed_episode_survives_json() -> None:
    log = Log()
    episode = await play_one(lambda: Probe(log, breaks="step"), ["x"])
    again = Episode.from_json(episode.to_json())
    assert again == episode
    assert again.failure is not None
    assert str(again.failure) == "step: ZeroDivisionError: in step"


def test_keys_of_a_model_family_survive_json() -> None:
    call: Any = {"index": 0, "function": {"name": "a", "arguments": {}, "parsed": True}}
    message: Any = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
    episode = Episode(spec=specs(1)[0], turns=[Turn(message=message)])
    assert Episode.from_json(episode.to_json()).turns[0].message == message


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (np.float64(1.5), 1.5),
        (np.arange(3), [0, 1, 2]),
        (np.int64(3), 3),
        (datetime.date(2024, 5, 6), "2024-05-06"),
        ({1}, [1]),
        ((1, "a"), [1, "a"]),
        ({(1, 2): 3}, {"1,2": 3}),
        (float("nan"), "NaN"),
        (b"text", "text"),
        (b"\xff\xfe", repr(b"\xff\xfe")),
        ("\ud800", repr("\ud800")),
        (Calculator, repr(Calculator)),
    ],
)
def test_odd_values_of_a_row_survive_json(value: Any, kept: Any) -> None:
    row: Mapping[Any, Any] = collections.ChainMap({"odd": value, 5: "five"})
    episode = Episode(spec=EpisodeSpec(task=Task(id="t", row=row), group="t"))
    assert Episode.from_json(episode.to_json()).spec.task.row == {"odd": kept, "5": "five"}
    assert episode.spec.task.row is row


def test_a_trace_keeps_its_lengths_equal() -> None:
    trace = TokenTrace(prompt_ids=[1])
    trace.append_sampled([2, 3], [-1.0, -2.0])
    trace.append_observation(Tokens([4]))
    assert (trace.ids, trace.mask, trace.logprobs) == ([1, 2, 3, 4], [1, 1, 0], [-1.0, -2.0, 0.0])
    assert (len(trace), trace.num_sampled) == (4, 2)
    with pytest.raises(ValueError, match="got 2 sampled tokens and 1 log-probabilities"):
        trace.append_sampled([1, 2], [-1.0])
    assert len(trace) == 4


def test_a_lone_surrogate_is_written_as_its_escape() -> None:
    message: Message = {"role": "user", "content": "a \ud83d b"}
    episode = Episode(spec=EpisodeSpec(task=Task(id="t", row={"text": "\ud83d"}), group="t"), prompt=[message])
    episode.turns = [Turn(message=tool_call("say", text="\udc00"), reward=math.inf)]
    episode.metrics = {"odd": math.nan}
    again = Episode.from_json(episode.to_json())
    assert again.prompt[0].get("content") == "a \\ud83d b"
    [call] = again.turns[0].message.get("tool_calls") or []
    assert call["function"]["arguments"] == {"text": "\\udc00"}
    assert again.turns[0].reward == math.inf
    assert math.isnan(again.metrics["odd"])
