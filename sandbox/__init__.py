"""Run untrusted code: the executor contract and the executors that keep it; start reading at `base.py`."""

from .base import ExecutionResult, Executor, FileEntry, Limits, Status
from .docker import DockerExecutor
from .engine import Engine
from .errors import (
    EngineError,
    ImageError,
    SandboxClosedError,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxFileTooLargeError,
    SandboxLostError,
    SandboxPermissionError,
    SandboxTimeoutError,
)
from .images import DEFAULT_IMAGE
from .reaper import reap

__all__ = [
    "DEFAULT_IMAGE",
    "DockerExecutor",
    "Engine",
    "EngineError",
    "ExecutionResult",
    "Executor",
    "FileEntry",
    "ImageError",
    "Limits",
    "SandboxClosedError",
    "SandboxError",
    "SandboxFileError",
    "SandboxFileNotFoundError",
    "SandboxFileTooLargeError",
    "SandboxLostError",
    "SandboxPermissionError",
    "SandboxTimeoutError",
    "Status",
    "reap",
]
