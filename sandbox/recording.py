"""What an executor was asked and what it answered, as a file that `ScriptedExecutor` can replay.

- `Step`: one call and its outcome.
- `Recording`: the steps of a box, and the recordings of its clones; `to_json` and `from_json`. `Recorder` makes them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal, Self, TypeAlias, TypeVar, get_args

from .base import ExecutionResult, FileEntry, Status
from .errors import (
    EngineError,
    ImageError,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxFileTooLargeError,
    SandboxLostError,
    SandboxPermissionError,
    SandboxTimeoutError,
)

FORMAT = 1
LONG = 1 << 16  # arguments longer than this are kept as a digest, which is enough to compare them

Operation: TypeAlias = Literal["start", "python", "bash", "write_file", "read_file", "list_files", "ping", "reset"]


class ScriptError(SandboxError, AssertionError):
    """A scripted executor was asked something to which its script has no answer: the test or the recording is wrong."""


class Ending(StrEnum):
    """How a call ended that has nothing to give back."""

    DONE = "done"
    CANCELLED = "cancelled"
    RUNNING = "running"  # it has not ended; such a step cannot be saved


Outcome: TypeAlias = ExecutionResult | bytes | list[FileEntry] | SandboxError | Ending


@dataclass(kw_only=True, slots=True, eq=False)
class Step:
    """One call and its outcome."""

    operation: Operation
    arguments: dict[str, Any]  # as `recorded_arguments` makes them
    outcome: Outcome = Ending.RUNNING
    retire: str | None = None  # the box's `retire_reason` after the call


@dataclass(kw_only=True, slots=True, eq=False)
class Recording:
    """The calls of one box in the order in which they were made; those that the life-cycle forbids are left out."""

    steps: list[Step] = field(default_factory=list)
    clones: list[Recording] = field(default_factory=list)  # of the executors made by `clone`, in that order

    def to_json(self) -> str:
        """The recording as text in ASCII.

        Raises:
            ValueError: a call is still running.
        """
        return json.dumps({"format": FORMAT, **_written(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The recording that `to_json` has written; nothing in it is imported or looked up by name.

        Raises:
            ValueError: the text is no recording, or one of another format.
        """
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"a recording is a JSON object of format {FORMAT}, got {found!r}: record it again")
        return _read(cls, data)


def recorded_arguments(**arguments: Any) -> dict[str, Any]:
    """Arguments as a recording holds them: of JSON's types, text and bytes alike, long ones as a digest."""
    return {name: _recorded(value) for name, value in arguments.items()}


def _recorded(value: Any) -> Any:
    if not isinstance(value, str | bytes):
        return value
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    if len(data) > LONG:
        return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


# Errors: a table, so that no text in a file can name anything else.

_ERRORS: dict[str, type[SandboxError]] = {
    kind.__name__: kind
    for kind in (
        EngineError,
        ImageError,
        SandboxError,
        SandboxFileError,
        SandboxFileNotFoundError,
        SandboxFileTooLargeError,
        SandboxLostError,
        SandboxPermissionError,
        SandboxTimeoutError,
    )
}


def portable(error: SandboxError) -> SandboxError:
    """A new error, of the nearest kind that a recording knows, without traceback, cause or attributes of its own."""
    kind = next(base for base in type(error).__mro__ if base in _ERRORS.values())
    if isinstance(error, SandboxFileError):
        return kind(error.errno, error.strerror, error.filename)
    if isinstance(error, SandboxLostError):
        return SandboxLostError(str(error), result=error.result)
    return kind(str(error))


# To and from JSON.


def _written(recording: Recording) -> dict[str, Any]:
    return {
        "steps": [_written_step(number, step) for number, step in enumerate(recording.steps)],
        "clones": [_written(clone) for clone in recording.clones],
    }


def _written_step(number: int, step: Step) -> dict[str, Any]:
    if step.outcome is Ending.RUNNING:
        raise ValueError(f"step {number}, {step.operation}, is still running: save a recording when its calls ended")
    written = {"operation": step.operation, "arguments": step.arguments, "outcome": _written_outcome(step.outcome)}
    return written if step.retire is None else {**written, "retire": step.retire}


def _written_outcome(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, ExecutionResult):
        return {"result": {field.name: getattr(outcome, field.name) for field in fields(outcome)}}
    if isinstance(outcome, bytes):
        try:
            return {"text": outcome.decode()}
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(outcome).decode()}
    if isinstance(outcome, list):
        return {"files": [[entry.path, entry.kind, entry.size] for entry in outcome]}
    if isinstance(outcome, Ending):
        return {"ending": outcome.value}
    written: dict[str, Any] = {"error": type(outcome).__name__, "message": str(outcome)}
    if isinstance(outcome, SandboxFileError):
        written |= {"errno": outcome.errno, "message": outcome.strerror, "filename": outcome.filename}
    if isinstance(outcome, SandboxLostError) and outcome.result is not None:
        written |= _written_outcome(outcome.result)
    return written


RecordingType = TypeVar("RecordingType", bound=Recording)


def _read(cls: type[RecordingType], data: dict[str, Any]) -> RecordingType:
    steps, clones = (data.get(name) if isinstance(data, dict) else None for name in ("steps", "clones"))
    if not isinstance(steps, list) or not isinstance(clones, list):
        raise ValueError("a recording has the lists 'steps' and 'clones'")
    read = []
    for number, step in enumerate(steps):
        try:
            read.append(_read_step(step))
        except (KeyError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise ValueError(f"step {number} of the recording cannot be read: {what}") from error
    return cls(steps=read, clones=[_read(Recording, clone) for clone in clones])


_ANSWERS: dict[str, type] = {"python": ExecutionResult, "bash": ExecutionResult, "read_file": bytes, "list_files": list}


def _read_step(data: dict[str, Any]) -> Step:
    operation, arguments, retire = data["operation"], data["arguments"], data.get("retire")
    if operation not in get_args(Operation):
        raise ValueError(f"operation must be one of {', '.join(get_args(Operation))}, got {operation!r}")
    if not isinstance(arguments, dict) or not isinstance(retire, str | None):
        raise ValueError(f"arguments must be an object, and retire a text or absent, got {arguments!r} and {retire!r}")
    outcome, answer = _read_outcome(data["outcome"]), _ANSWERS.get(operation, Ending)
    if not isinstance(outcome, answer | SandboxError) and outcome is not Ending.CANCELLED:
        raise ValueError(f"{operation} is answered by {answer.__name__}, got {type(outcome).__name__}")
    return Step(operation=operation, arguments=arguments, outcome=outcome, retire=retire)


def _read_outcome(data: dict[str, Any]) -> Outcome:
    if "error" in data:
        return _read_error(data)
    if "result" in data:
        return _read_result(data["result"])
    if "files" in data:
        return [FileEntry(path=str(path), kind=kind, size=int(size)) for path, kind, size in data["files"]]
    if "text" in data:
        return str(data["text"]).encode()
    if "base64" in data:
        return base64.b64decode(data["base64"], validate=True)
    return Ending(data["ending"])


def _read_error(data: dict[str, Any]) -> SandboxError:
    kind = _ERRORS.get(data["error"])
    if kind is None:
        raise ValueError(f"an error must be one of {', '.join(_ERRORS)}, got {data['error']!r}")
    if issubclass(kind, SandboxFileError):
        return kind(int(data["errno"]), str(data["message"]), str(data["filename"]))
    if kind is SandboxLostError:
        result = _read_result(data["result"]) if "result" in data else None
        return SandboxLostError(str(data["message"]), result=result)
    return kind(str(data["message"]))


def _read_result(data: dict[str, Any]) -> ExecutionResult:
    return ExecutionResult(
        status=Status(data["status"]),
        stdout=str(data["stdout"]),
        stderr=str(data["stderr"]),
        value=None if data["value"] is None else str(data["value"]),
        exit_code=None if data["exit_code"] is None else int(data["exit_code"]),
        duration=float(data["duration"]),
        dropped_bytes=int(data["dropped_bytes"]),
        state_lost=bool(data["state_lost"]),
    )
