"""`Recording`: the calls of one box and their outcomes, as a file that `ScriptedExecutor` can replay.

- `Step`: one call and its outcome.
- `Recording`: the steps of a box, with `to_json` and `from_json`. `Recorder` makes them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self, TypeAlias, get_args

from ... import errors
from ...base import ExecutionResult, FileEntry, RetireReason, Status
from ...errors import SandboxError, SandboxFileError

FORMAT = 2
LONG = 1 << 16  # bytes; a digest is kept of longer arguments, which is enough to compare them

Operation: TypeAlias = Literal["start", "python", "bash", "write_file", "read_file", "list_files", "ping", "reset"]
Outcome: TypeAlias = ExecutionResult | bytes | list[FileEntry] | SandboxError | None

_ANSWERS: dict[str, type] = {"python": ExecutionResult, "bash": ExecutionResult, "read_file": bytes, "list_files": list}
_ERRORS: dict[str, type[SandboxError]] = {  # the only classes that a file can name
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, SandboxError)
}


class ScriptError(SandboxError, AssertionError):
    """A scripted executor got a call that its script does not answer: the caller or the script has changed."""


@dataclass(kw_only=True, slots=True, eq=False)
class Step:
    """One call and its outcome."""

    operation: Operation
    arguments: dict[str, Any]  # as `recorded_arguments` returns them
    outcome: Outcome = None  # None for a call that returns nothing
    retire: RetireReason | None = None  # the box's `retire_reason` after the call
    ended: bool = True


@dataclass(kw_only=True, slots=True, eq=False)
class Recording:
    """The calls of one box in the order in which they were made, without those that raised `SandboxClosedError`."""

    steps: list[Step] = field(default_factory=list)

    def to_json(self) -> str:
        """Return the recording as ASCII text.

        Raises:
            ValueError: a call is still running, or was cancelled.
        """
        steps = [_write_step(number, step) for number, step in enumerate(self.steps)]
        return json.dumps({"format": FORMAT, "steps": steps}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the recording that `to_json` wrote; nothing that the text names is imported.

        Raises:
            ValueError: the text is not a recording, or has another format.
        """
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"a recording is a JSON object of format {FORMAT}, got {found!r}: record it again")
        if not isinstance(data.get("steps"), list):
            raise ValueError("a recording has a list 'steps'")
        return cls(steps=[_read_step(number, step) for number, step in enumerate(data["steps"])])


def recorded_arguments(**arguments: Any) -> dict[str, Any]:
    """Return arguments as a recording holds them: as JSON types, and long ones as a digest."""
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


def copy_error(error: SandboxError) -> SandboxError:
    """Return a new error of the nearest class in `errors.py`, without traceback and cause."""
    kind = next(base for base in type(error).__mro__ if base in _ERRORS.values())
    if isinstance(error, SandboxFileError):
        return kind(error.errno, error.strerror, error.filename)
    return kind(str(error))


def _write_step(number: int, step: Step) -> dict[str, Any]:
    if not step.ended:
        raise ValueError(
            f"step {number}, {step.operation}, is still running or was cancelled: a recording holds whole calls only"
        )
    written = {"operation": step.operation, "arguments": step.arguments, "outcome": _write_outcome(step.outcome)}
    return written if step.retire is None else {**written, "retire": list(step.retire)}


def _write_outcome(outcome: Outcome) -> dict[str, Any] | None:
    match outcome:
        case ExecutionResult():
            return {"result": asdict(outcome)}
        case bytes():
            return {"base64": base64.b64encode(outcome).decode()}
        case list():
            return {"files": [asdict(entry) for entry in outcome]}
        case SandboxFileError():
            return {"error": type(outcome).__name__, "arguments": [outcome.errno, outcome.strerror, outcome.filename]}
        case SandboxError():
            return {"error": type(outcome).__name__, "arguments": [str(outcome)]}
        case None:
            return None


def _read_step(number: int, data: dict[str, Any]) -> Step:
    try:
        operation, arguments, retire = data["operation"], dict(data["arguments"]), data.get("retire")
        if operation not in get_args(Operation):
            raise ValueError(f"operation must be one of {', '.join(get_args(Operation))}, got {operation!r}")
        outcome, answer = _read_outcome(data["outcome"]), _ANSWERS.get(operation, type(None))
        if not isinstance(outcome, answer | SandboxError):
            raise ValueError(f"{operation} is answered by {answer.__name__}, got {type(outcome).__name__}")
        reason = None if retire is None else RetireReason(*map(str, retire))
        return Step(operation=operation, arguments=arguments, outcome=outcome, retire=reason)
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise ValueError(f"step {number} of the recording cannot be read: {problem}") from error


def _read_outcome(data: dict[str, Any] | None) -> Outcome:
    if data is None:
        return None
    if "error" in data:
        if data["error"] not in _ERRORS:
            raise ValueError(f"an error must be one of {', '.join(sorted(_ERRORS))}, got {data['error']!r}")
        return _ERRORS[data["error"]](*data["arguments"])
    if "result" in data:
        return ExecutionResult(**{**data["result"], "status": Status(data["result"]["status"])})
    if "files" in data:
        return [FileEntry(**entry) for entry in data["files"]]
    return base64.b64decode(data["base64"], validate=True)
