"""Run untrusted code: the executor contract and the executors that keep it; start reading at `base.py`."""

from .base import ExecutionResult, Executor, FileEntry, Limits, Status
from .docker import DockerExecutor
from .engine import Engine
from .errors import (
    EngineError,
    EngineLoopError,
    EngineUnansweredError,
    ImageError,
    PoolLoopError,
    SandboxClosedError,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxFileTooLargeError,
    SandboxLostError,
    SandboxPermissionError,
    SandboxTimeoutError,
)
from .images import DEFAULT_IMAGE, build_image
from .local import LocalExecutor
from .pool import ExecutorPool, pool_of
from .pool_statistics import PoolStatistics
from .reaper import reap
from .recorder import Recorder
from .recording import Recording, ScriptError
from .scripted import ScriptedExecutor

__all__ = [
    "DEFAULT_IMAGE",
    "DockerExecutor",
    "Engine",
    "EngineError",
    "EngineLoopError",
    "EngineUnansweredError",
    "ExecutionResult",
    "Executor",
    "ExecutorPool",
    "FileEntry",
    "ImageError",
    "Limits",
    "LocalExecutor",
    "PoolLoopError",
    "PoolStatistics",
    "Recorder",
    "Recording",
    "SandboxClosedError",
    "SandboxError",
    "SandboxFileError",
    "SandboxFileNotFoundError",
    "SandboxFileTooLargeError",
    "SandboxLostError",
    "SandboxPermissionError",
    "SandboxTimeoutError",
    "ScriptError",
    "ScriptedExecutor",
    "Status",
    "build_image",
    "pool_of",
    "reap",
]
