"""Messages as the protocol of OpenAI has them, and its answers as ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from ..core import FunctionCall, Message
from ..images import Image, with_parts
from ..json_values import check_depth
from ..runtime.message_text import named_text


def as_message(answer: Any) -> Message:
    """Return the server's answer as our message. Arguments that are a JSON object become a dict, as templates want."""
    message: Message = {"role": "assistant", "content": answer.content or answer.refusal or ""}
    extra = answer.model_extra or {}
    thought = extra.get("reasoning_content") or extra.get("reasoning")  # two names that servers have for it
    if isinstance(thought, str):
        message["reasoning_content"] = thought
    for call in answer.tool_calls or []:
        if call.type == "function":
            function: FunctionCall = {"name": call.function.name, "arguments": _arguments(call.function.arguments)}
            message.setdefault("tool_calls", []).append({"id": call.id, "type": "function", "function": function})
    return message


def _arguments(text: str) -> dict[str, Any] | str:
    try:
        arguments = json.loads(text or "{}")
        check_depth(arguments)
    except (ValueError, RecursionError):
        return text  # the environment tells the model the error
    return arguments if isinstance(arguments, dict) else text


def as_requests(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Our messages as the protocol has them.

    It allows only text in results of tools: their pictures follow in a message of the user, behind the last result.
    """
    requests: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []  # pictures of the results so far
    for message, following in zip_longest(messages, messages[1:]):
        request = as_request(message)
        if request["role"] == "tool" and isinstance(request["content"], list):
            if pictures := [part for part in request["content"] if part["type"] == "image_url"]:
                text = f"image of the result of call {request['tool_call_id']}"
                shown += [{"type": "text", "text": text}, *pictures]
            request["content"] = named_text(message)
        requests.append(request)
        if shown and (following is None or following["role"] != "tool"):
            requests.append({"role": "user", "content": shown})
            shown = []
    return requests


def _part(part: dict[str, Any]) -> dict[str, Any]:
    image = part.get("image")
    return {"type": "image_url", "image_url": {"url": image.data_uri}} if isinstance(image, Image) else part


def as_request(message: Message) -> dict[str, Any]:
    """Our message as the protocol has it: arguments are text, and keys that only templates know are left out."""
    role = message["role"]
    if role == "tool" and "tool_call_id" not in message:  # the error of a call that could not be read has no call
        role = "user"
    request: dict[str, Any] = {"role": role, "content": with_parts(message, _part).get("content")}
    if role == "tool":
        request["tool_call_id"] = message.get("tool_call_id")
    calls = [
        {**call, "type": "function", "function": {**call["function"], "arguments": _text(call["function"])}}
        for call in message.get("tool_calls") or []
    ]
    return {**request, "tool_calls": calls} if calls else request


def _text(function: FunctionCall) -> str:
    arguments = function["arguments"]
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
