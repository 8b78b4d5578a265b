"""The exceptions of a broken sandbox. Code that fails inside a box raises no exception: it has an `ExecutionResult`.

Every error is both a `SandboxError` and a standard-library type, so callers can catch either.
"""

from __future__ import annotations

import errno
import os


class SandboxError(Exception):
    """The sandbox failed, and not the code that runs in it."""


class EngineError(SandboxError, ConnectionError):
    """The container engine is absent, out of reach, or refused a request; or a box ended during its start."""


class EngineUnansweredError(EngineError):
    """The container engine did not answer a request in time. It may still carry out the request."""


class EngineLoopError(SandboxError, RuntimeError):
    """The engine is in use in another event loop, which is running."""


class ImageError(SandboxError, LookupError):
    """The image, or another part of a box, is missing or lacks something; the message names it."""


class SandboxClosedError(SandboxError, RuntimeError):
    """The executor has not been started, or is closed already."""


class PoolLoopError(SandboxError, RuntimeError):
    """The pool belongs to another event loop than the running one."""


class SandboxTimeoutError(SandboxError, TimeoutError):
    """No box was ready in time. (Code that runs too long is a result with `Status.TIMEOUT`.)"""


class SandboxLostError(SandboxError, ConnectionError):
    """The box died or stopped answering during a call; `reset` makes a new one."""


class SandboxFileError(SandboxError, OSError):
    """A file in the box could not be read or written; `errno`, `strerror` and `filename` say why."""


class SandboxFileNotFoundError(SandboxFileError, FileNotFoundError):
    """There is no such file in the box."""


class SandboxPermissionError(SandboxFileError, PermissionError):
    """The code's user may not do this, or the path is a symbolic link."""


class SandboxFileTooLargeError(SandboxFileError):
    """The file, or the listing, is larger than `Limits.max_file`."""


_BY_ERRNO: dict[int, type[SandboxFileError]] = {
    errno.ENOENT: SandboxFileNotFoundError,
    errno.EACCES: SandboxPermissionError,
    errno.EPERM: SandboxPermissionError,
    errno.EROFS: SandboxPermissionError,
    errno.ELOOP: SandboxPermissionError,
    errno.EFBIG: SandboxFileTooLargeError,
}


def file_error(number: int, path: str, detail: str = "") -> SandboxFileError:
    """The error for an errno that a box reported; `detail` replaces the system's text."""
    return _BY_ERRNO.get(number, SandboxFileError)(number, detail or os.strerror(number), path)
