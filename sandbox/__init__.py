"""Run untrusted code: the executor contract and the executors that keep it; start reading at `base.py`."""

from .base import ExecutionResult, Executor, FileEntry, Status
from .box import Box, Capability, Process
from .box_image import BoxImage
from .defaults.executor import default_box, default_executor
from .docker.box import DockerBox
from .docker.engine import Engine
from .docker.executor import DockerExecutor
from .docker.images import build_image
from .docker.reaper import reap
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
from .host.box_executor import BoxExecutor
from .images.image import DEFAULT_IMAGE
from .lifecycle import RetireReason, Sandbox
from .limits import Limits
from .local.bwrap import BwrapExecutor
from .local.bwrap_box import BwrapBox
from .local.executor import LocalExecutor
from .pool import ExecutorPool, PoolStatistics, pool_of
from .screen import Screen
from .testing.scripted_executor import ScriptedExecutor, ScriptError

__all__ = [
    "DEFAULT_IMAGE",
    "Box",
    "BoxExecutor",
    "BoxImage",
    "BwrapBox",
    "BwrapExecutor",
    "Capability",
    "DockerBox",
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
    "Process",
    "RetireReason",
    "Sandbox",
    "SandboxClosedError",
    "SandboxError",
    "SandboxFileError",
    "SandboxFileNotFoundError",
    "SandboxFileTooLargeError",
    "SandboxLostError",
    "SandboxPermissionError",
    "SandboxTimeoutError",
    "Screen",
    "ScriptError",
    "ScriptedExecutor",
    "Status",
    "build_image",
    "default_box",
    "default_executor",
    "pool_of",
    "reap",
]
