"""EngineThread: a vLLM engine and the only thread that touches it.

vLLM's own asynchronous engine runs in a second process, so new weights would have to be sent there. This engine stays
in the training process. Between two of its steps the thread adds and aborts requests, so each request is its own
stream, and runs every other call to the engine.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import torch

from ...envs.images import Image
from ...envs.runtime.threads import run_in_thread
from ...sandbox.cancellation import finish
from ..generation.contract import GenerationError, StopTexts, settle
from .pictures import media
from .private_api import end_engine

Result = TypeVar("Result")


class EngineThread:
    """Steps an engine (`vllm.v1.engine.llm_engine.LLMEngine`) while there are requests; owns it from now on."""

    def __init__(self, engine: Any) -> None:
        self._engine: Any = engine  # None once it has ended
        self._names = itertools.count()
        self._waiting: dict[str, tuple[Future[Any], StopTexts | None]] = {}  # by the names of the requests
        # The garbage collector may close a generator at any point of any thread, so a lock could be held already.
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._end_reason = "the generator is closed"
        self._end_cause: BaseException | None = None
        self._device = torch.cuda.current_device() if torch.cuda.is_available() else None
        self._thread = threading.Thread(target=self._work, name="gymnast-vllm", daemon=True)
        self._thread.start()

    async def ask(
        self,
        prompt_ids: Sequence[int],
        params: Any,
        *,
        pictures: Sequence[Image] = (),
        adapter: Any = None,
        stop_texts: StopTexts | None = None,
    ) -> Any:
        """Return the finished `RequestOutput` for these tokens, or raise a GenerationError. Cancellation aborts it.

        The ids have a placeholder for each of the `pictures`. vLLM's processor works in a thread of its own. `adapter`
        is the `LoRARequest` of the adapter to answer with. `stop_texts` need the parameters of cumulative output. If
        one of them ends the answer, the output is not finished.
        """
        name, output = str(next(self._names)), Future[Any]()

        def add(prompt: Any) -> None:
            if self._engine is None:
                settle(output, self._end_error())
                return
            try:
                self._engine.add_request(name, prompt, params, lora_request=adapter)
            except Exception as error:  # only this request is wrong
                refusal = GenerationError(f"vLLM refused a request: {error}")
                refusal.__cause__ = error
                settle(output, refusal)
            else:
                self._waiting[name] = output, stop_texts

        async def expand_and_add() -> None:
            self._submit(partial(add, await self._with_pictures(prompt_ids, pictures)))

        try:
            if pictures:  # also if it is cancelled: vLLM's processor hands the engine each picture only once
                await finish(expand_and_add())
            else:
                self._submit(partial(add, {"type": "token", "prompt_token_ids": list(prompt_ids)}))
            return await asyncio.wrap_future(output)
        except BaseException:
            self._submit(lambda: self._abort(name))
            raise

    async def _with_pictures(self, prompt_ids: Sequence[int], pictures: Sequence[Image]) -> Any:
        if (engine := self._engine) is None:
            raise self._end_error()
        prompt = await run_in_thread(media, prompt_ids, pictures)
        try:
            [expanded] = await engine.renderer.render_cmpl_async([prompt])
        except Exception as error:  # of vLLM's processor, or because it ends
            raise GenerationError(f"vLLM refused a request with pictures: {error}") from error
        return expanded

    def call(self, function: Callable[[Any], Result]) -> Result:
        """Run a function of the engine between two steps; return its result, or raise its error or the engine's."""
        result: Future[Result] = Future()

        def job() -> None:
            try:
                settle(result, self._end_error() if self._engine is None else function(self._engine))
            except BaseException as error:
                settle(result, error)

        self._submit(job)
        return result.result()

    def close(self) -> None:
        """End the thread and the engine. Unanswered requests fail."""
        self._submit(self._end)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _submit(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)
        if self._engine is None:  # then the thread may have ended before it saw the job
            self._do_jobs()

    def _do_jobs(self) -> None:
        with suppress(Empty):
            while True:
                self._jobs.get_nowait()()

    def _end_error(self) -> GenerationError:
        error = GenerationError(self._end_reason)
        error.__cause__ = self._end_cause
        return error

    # The thread's work.

    def _work(self) -> None:
        if self._device is not None:
            torch.cuda.set_device(self._device)  # a new thread starts on the first GPU
        try:
            while self._engine is not None:
                if not self._waiting:
                    self._jobs.get()()
                self._do_jobs()
                if self._waiting:
                    self._step()
        except BaseException as error:  # every waiting episode must fail with it
            self._end_reason = f"vLLM failed while generating: {type(error).__name__}: {error}"
            self._end_cause = error
            self._end()
        self._do_jobs()

    def _abort(self, name: str) -> None:
        if self._waiting.pop(name, None) is not None:
            self._engine.abort_request([name])

    def _step(self) -> None:
        for output in self._engine.step():
            name = output.request_id
            answer, texts = self._waiting.get(name, (None, None))
            if answer is None:
                continue
            if output.finished:
                del self._waiting[name]
                settle(answer, output)
            elif texts is not None and texts.end_with(output.outputs[0].token_ids):
                self._abort(name)
                settle(answer, output)

    def _end(self) -> None:
        for answer, _ in self._waiting.values():
            settle(answer, self._end_error())
        self._waiting.clear()
        engine, self._engine = self._engine, None
        if engine is not None:
            end_engine(engine)
