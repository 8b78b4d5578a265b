"""Results of tools as message content: rendered, cut to a limit, and without text that JSON cannot hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pydantic_core

from ..core import MalformedCall, Message
from ..images import checked_part, is_picture

PART_TYPES = frozenset({"text", "image", "image_url", "audio", "input_audio", "video", "file"})
MEDIA_TYPES = frozenset({"image", "audio", "video"})
MEDIA_SOURCES = frozenset({"url", "path", "base64"})


def render(value: Any) -> str | list[dict[str, Any]]:
    """Return a tool's result as message content: text as it is, pictures as parts, anything else as JSON.

    A list of pictures, texts and content parts, not of texts alone, becomes parts.

    Raises:
        TypeError: the result has no JSON.
        ValueError: a picture is refused; see `Image`.
    """
    if isinstance(value, str):
        return value
    items = [value] if is_picture(value) else value
    if isinstance(items, list) and not all(isinstance(item, str) for item in items):
        parts = [_as_part(item) for item in items]
        if all(_is_part(part) for part in parts):
            return [checked_part(part) for part in parts]
    try:
        return pydantic_core.to_json(value, inf_nan_mode="constants", fallback=_array).decode()
    except pydantic_core.PydanticSerializationError as error:
        raise TypeError(
            f"the tool returned {type(value).__name__}, which cannot be shown to the model ({error}): return text, "
            f"numbers, lists, dicts, dataclasses or pydantic models"
        ) from None


def _array(value: Any) -> Any:
    """Return an array or a tensor as lists of numbers; any other object has no form that a model could read."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"no JSON for {type(value).__name__}")


def _as_part(item: Any) -> Any:
    if is_picture(item):
        return {"type": "image", "image": item}
    return {"type": "text", "text": item} if isinstance(item, str) else item


def _is_part(item: Any) -> bool:
    if not isinstance(item, Mapping) or item.get("type") not in PART_TYPES:
        return False
    kind = item["type"]
    if kind == "text":
        return isinstance(item.get("text"), str)
    # A part carries its payload: a directory listing such as [{"type": "file", "name": ...}] is not a list of parts.
    return kind in item or (kind in MEDIA_TYPES and not MEDIA_SOURCES.isdisjoint(item))


def encodable(content: Any) -> Any:
    """Return the content without lone surrogates, which neither a tokenizer nor JSON accepts."""
    if isinstance(content, str):
        return content if content.isascii() else content.encode("utf-8", "replace").decode()
    return [{**part, "text": encodable(part["text"])} if part["type"] == "text" else part for part in content]


def with_text_of(malformed: Sequence[MalformedCall], message: Message) -> Message:
    """Return the message with the text of its malformed calls added to its content, unless it is there already."""
    content = message.get("content") or ""
    parts: list[Any] = content if isinstance(content, list) else [{"type": "text", "text": content}]
    known = "\n".join(part["text"] for part in parts if part["type"] == "text")
    texts = [call["text"] for call in malformed if call["text"] not in known]
    if isinstance(content, list):
        whole: Any = [*content, *({"type": "text", "text": text} for text in texts)]
    else:
        whole = "\n".join(filter(None, [content, *texts]))
    return {**message, "content": whole, "malformed": []}


def cut(content: str | list[dict[str, Any]], max_chars: int | None) -> Any:
    """Return the content with at most `max_chars` characters of text: head and tail, with a marker where it was cut."""
    if max_chars is None:
        return content
    if isinstance(content, str):
        return cut_text(content, max_chars)
    left = max_chars
    parts = []
    for part in content:
        if part["type"] == "text":
            text = cut_text(part["text"], left)
            left = max(0, left - len(text))
            part = {**part, "text": text}
        parts.append(part)
    return parts


def cut_text(text: str, max_chars: int) -> str:
    """Return the text, or its head and tail if it is too long, with a marker that says how much is missing."""
    if len(text) <= max_chars:
        return text
    head = (max_chars + 1) // 2
    tail = max_chars - head
    missing = len(text) - max_chars
    return f"{text[:head]}\n[... {missing} characters cut ...]\n{text[len(text) - tail :]}"
