"""What a supervisor's answer to a piece of code says, as a result."""

from __future__ import annotations

from typing import Any, cast

from .base import ExecutionResult, Status


def result_of(header: dict[str, Any], parts: list[bytes], duration: float) -> ExecutionResult:
    """The result that the answer to `python` or `bash` describes."""
    out_head, out_tail, err_head, err_tail, value_head, value_tail, error = parts
    dropped = cast(list[int], header["dropped"])
    return ExecutionResult(
        status=Status(header["status"]),
        stdout=_text(out_head, out_tail, dropped[0]),
        stderr=_text(err_head, err_tail, dropped[1]) + error.decode("utf-8", "replace"),
        value=_text(value_head, value_tail, dropped[2]) if header["value"] else None,
        exit_code=header["code"],
        duration=duration,
        dropped_bytes=sum(dropped),
        state_lost=header["lost"],
    )


def _text(head: bytes, tail: bytes, dropped: int) -> str:
    if not dropped:
        return (head + tail).decode("utf-8", "replace")
    marker = f"\n[... {dropped} bytes dropped ...]\n"
    return head.decode("utf-8", "replace") + marker + tail.decode("utf-8", "replace")
