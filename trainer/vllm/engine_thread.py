"""EngineThread: a vLLM engine and the only thread that touches it.

vLLM's own asynchronous engine runs in a second process, so new weights would have to be sent there. This engine stays
in the training process. Between two of its steps the thread adds and aborts requests, so each request is its own
stream, and runs every other call to the engine.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ..generation.contract import GenerationError
from .private_api import ending_engine

Result = TypeVar("Result")


@dataclass(slots=True, frozen=True)
class _Waiting:
    """The future of a request that the engine works on."""

    future: asyncio.Future[Any]

    def settle(self, result: Any) -> None:
        """Resolve the future with an output or an error. Called from the engine's thread."""
        try:
            self.future.get_loop().call_soon_threadsafe(self._resolve, result)
        except RuntimeError:
            return  # the event loop is closed, so nobody waits for the future

    def _resolve(self, result: Any) -> None:
        if self.future.done():  # cancelled meanwhile
            return
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


class EngineThread:
    """Steps an engine while there are requests.

    Args:
        engine: A `vllm.v1.engine.llm_engine.LLMEngine` in this process, owned by the thread from now on.
        keeps_group: Whether PyTorch's default process group existed before the engine and must outlive it.
    """

    def __init__(self, engine: Any, *, keeps_group: bool) -> None:
        self._engine: Any = engine
        self._keeps_group = keeps_group
        self._names = itertools.count()
        self._waiting: dict[str, _Waiting] = {}
        self._jobs: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._closed: GenerationError | None = None  # set when the thread ends: the reason
        self._device = torch.cuda.current_device() if torch.cuda.is_available() else None
        with _ending:
            _living.add(self)
        self._thread = threading.Thread(target=self._work, name="gymnast-vllm", daemon=True)
        self._thread.start()

    async def ask(self, prompt_ids: Sequence[int], params: Any) -> Any:
        """Return the finished `RequestOutput` for these tokens. Cancellation aborts the request.

        Raises:
            GenerationError: the engine failed or is closed.
        """
        name = str(next(self._names))
        waiting = _Waiting(asyncio.get_running_loop().create_future())
        self._submit(lambda: self._add(name, list(prompt_ids), params, waiting))
        try:
            return await waiting.future
        except asyncio.CancelledError:
            self._submit(lambda: self._abort(name), must_be_open=False)
            raise

    def call(self, function: Callable[[Any], Result]) -> Result:
        """Run a function of the engine between two steps, wait for it, and return its result.

        Raises:
            GenerationError: the engine is closed.
            Exception: the function raised it.
        """
        answer: concurrent.futures.Future[Result] = concurrent.futures.Future()

        def job() -> None:
            try:
                answer.set_result(function(self._engine))
            except BaseException as error:
                answer.set_exception(error)

        self._submit(job)
        return answer.result()

    def close(self) -> None:
        """End the thread and the engine. Unanswered requests fail."""
        with self._changed:
            self._closed = self._closed or GenerationError("the generator is closed")
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _submit(self, job: Callable[[], None], *, must_be_open: bool = True) -> None:
        with self._changed:
            if self._closed is not None:
                if not must_be_open:
                    return
                raise GenerationError(str(self._closed)) from self._closed.__cause__
            self._jobs.append(job)
            self._changed.notify()

    # The engine's thread.

    def _work(self) -> None:
        if self._device is not None:
            torch.cuda.set_device(self._device)  # a new thread starts on the first GPU
        try:
            while self._do_jobs():
                if self._waiting:
                    self._step()
        except BaseException as error:  # every waiting episode must fail with it
            failure = GenerationError(f"vLLM failed while generating: {type(error).__name__}: {error}")
            failure.__cause__ = error
            with self._changed:
                self._closed = failure
        self._end()

    def _do_jobs(self) -> bool:
        """Run the waiting jobs; without requests, wait for one. Return False once the engine is closed."""
        with self._changed:
            while not (self._jobs or self._waiting or self._closed):
                self._changed.wait()
            jobs, self._jobs = self._jobs, []
            going_on = self._closed is None
        for job in jobs:
            job()
        return going_on

    def _step(self) -> None:
        for output in self._engine.step():
            if output.finished and output.request_id in self._waiting:
                self._waiting.pop(output.request_id).settle(output)

    def _add(self, name: str, prompt_ids: list[int], params: Any, waiting: _Waiting) -> None:
        try:
            self._engine.add_request(name, {"type": "token", "prompt_token_ids": prompt_ids}, params)
        except Exception as error:  # only this request is wrong
            failure = GenerationError(f"vLLM refused a request: {error}")
            failure.__cause__ = error
            waiting.settle(failure)
            return
        self._waiting[name] = waiting

    def _abort(self, name: str) -> None:
        if self._waiting.pop(name, None) is not None:
            self._engine.abort_request([name])

    def _end(self) -> None:
        with self._changed:
            jobs, self._jobs = self._jobs, []
        for job in jobs:  # a caller that waits for one of these must not wait for ever
            with contextlib.suppress(Exception):  # the engine has failed; the waiting requests get the error below
                job()
        for waiting in self._waiting.values():
            waiting.settle(self._closed)
        self._waiting.clear()
        engine, self._engine = self._engine, None
        with _ending:
            _living.discard(self)
            with ending_engine(of_groups=not _living, of_default_group=not self._keeps_group):
                engine.engine_core.shutdown()


_ending = threading.Lock()  # held while an engine starts or ends
_living: set[EngineThread] = set()
