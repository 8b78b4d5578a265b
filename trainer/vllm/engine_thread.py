"""EngineThread: a vLLM engine and the one thread that touches it.

vLLM's own asynchronous engine runs in a second process, to which new weights would have to be sent. This one stays in
the training process: requests come and go between two of its steps, so each is its own stream, and whatever else is to
be done to the engine is done in the same place.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .generation import GenerationError

Result = TypeVar("Result")


@dataclass(slots=True, frozen=True)
class _Waiting:
    """Who waits for a request's output."""

    future: asyncio.Future[Any]

    def settle(self, result: Any) -> None:
        """Hand over an output or an error; called from the engine's thread."""
        try:
            self.future.get_loop().call_soon_threadsafe(self._resolve, result)
        except RuntimeError:
            return  # the event loop is closed: nobody waits

    def _resolve(self, result: Any) -> None:
        if self.future.done():  # cancelled meanwhile
            return
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


class EngineThread:
    """Steps an engine as long as there are requests.

    Args:
        engine: A `vllm.v1.engine.llm_engine.LLMEngine` in this process, which belongs to the thread from now on.
        keeps_group: PyTorch's default process group was there before the engine, and is to be there after it.
    """

    def __init__(self, engine: Any, *, keeps_group: bool) -> None:
        self._engine: Any = engine
        self._keeps_group = keeps_group
        self._names = itertools.count()
        self._waiting: dict[str, _Waiting] = {}
        self._jobs: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._closed: GenerationError | None = None  # why nothing more is done
        self._device = torch.cuda.current_device() if torch.cuda.is_available() else None
        with _ending:
            _living.add(self)
        self._thread = threading.Thread(target=self._work, name="gymnast-vllm", daemon=True)
        self._thread.start()

    async def ask(self, prompt_ids: Sequence[int], params: Any) -> Any:
        """The finished `RequestOutput` of these tokens; on cancellation the request is taken out of the engine.

        Raises:
            GenerationError: the engine failed, or is closed.
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
        """What a function of the engine returns, between two steps; the caller waits.

        Raises:
            GenerationError: the engine is closed.
            Exception: whatever the function raises.
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
        """End the thread and the engine; requests that it has not answered fail."""
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
            torch.cuda.set_device(self._device)  # a new thread begins with the first GPU
        try:
            while self._do_jobs():
                if self._waiting:
                    self._step()
        except BaseException as error:  # every waiting episode must hear of it
            failure = GenerationError(f"vLLM failed while generating: {type(error).__name__}: {error}")
            failure.__cause__ = error
            with self._changed:
                self._closed = failure
        self._end()

    def _do_jobs(self) -> bool:
        """Do what was asked for, and wait for it while there are no requests; False when all is to end."""
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
        except Exception as error:  # this request alone is wrong
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
        for job in jobs:  # whoever waits for one of these must not wait for ever
            with contextlib.suppress(Exception):  # of an engine that has failed, which everybody hears below
                job()
        for waiting in self._waiting.values():
            waiting.settle(self._closed)
        self._waiting.clear()
        engine, self._engine = self._engine, None
        with _ending:
            _living.discard(self)
            with _cleaning_up(of_groups=not _living, of_default_group=not self._keeps_group):
                engine.engine_core.shutdown()


_ending = threading.Lock()  # held while an engine ends, or becomes one of the living
_living: set[EngineThread] = set()


@contextlib.contextmanager
def _cleaning_up(*, of_groups: bool, of_default_group: bool) -> Iterator[None]:
    """While an engine ends, let vLLM clean up no more than what nobody else needs.

    It would destroy its own process groups, which other engines of this process use, and PyTorch's default one, which
    training may go on with.
    """
    core: Any = import_module("vllm.v1.engine.core")
    clean_up, destroy = core.cleanup_dist_env_and_memory, dist.destroy_process_group

    def destroy_others(group: dist.ProcessGroup | None = None) -> None:
        if group is not None:
            destroy(group)

    if not of_groups:
        core.cleanup_dist_env_and_memory = lambda *_, **__: None
    if not of_default_group:
        dist.destroy_process_group = destroy_others
    try:
        yield
    finally:
        core.cleanup_dist_env_and_memory, dist.destroy_process_group = clean_up, destroy
