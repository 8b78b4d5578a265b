"""OpenAIPolicy: a model behind any server that speaks OpenAI's protocol for chat completions, with tools."""

# pyright: reportMissingImports=false
# The client is an optional dependency, so it is imported when a policy is made.

from __future__ import annotations

import asyncio
import inspect
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..core import ConfigurationError, Message, OverlongPromptError, StopReason, ToolSchema, text_of
from ..episode import EpisodeSpec
from ..extras import needs_extra
from ..policy import Act, TokenlessConversation, continued
from .openai_messages import as_message, as_request, as_requests

FIRST_RETRIES = 2  # of the first request, unless a rate limit holds it up: a wrong address is an error within seconds
CONTEXT_IS_FULL = re.compile(r"context[ _]length|maximum model length|max_model_len", re.IGNORECASE)
BEGUN_CALL = re.compile(r"<[^<>]+>|\[[A-Z_]+\]|\A\s*[\[{]")  # a tag, or a list or an object of JSON
CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}  # as vLLM takes it
TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")


class OpenAIPolicy:
    """Answers with a model that a server offers, such as `gymnast serve vllm MODEL`, or a paid service.

    Requests that fail for a moment (no connection, rate limits, errors of the server) are sent again, after growing
    pauses or after the pause that the server asks for. An answer that is cut ends its episode with TURN_TRUNCATED, a
    context that is full with CONTEXT_OVERFLOW. Each turn has the server's counts of tokens. All requests wait until
    the first one is answered.

        policy = OpenAIPolicy("Qwen/Qwen3-0.6B", base_url="http://gpu1:8000/v1", temperature=0.7, max_tokens=1024)
        episodes = RolloutEngine(Calculator(), policy).play(rows)

    Args:
        model: The name of the model on the server.
        base_url: The server's address, which usually ends with /v1.
        api_key: By default the environment variable OPENAI_API_KEY; servers of your own often need none.
        max_retries: How often a request is sent again before its episode fails.
        timeout: Seconds until a request without an answer counts as failed.
        requests_per_minute: A rate that requests are spread to keep; None for no limit.
        continue_final_message: The server has this option of vLLM, so the model can go on with the words with which the
            environment begins its first answer. Other servers ignore such words, or close them, without saying so.
        request: Further parameters of chat completions, such as `temperature`, `max_tokens`, `extra_body`.

    Raises:
        MissingExtraError: the package `openai` is not installed.
        ConfigurationError: there is no such parameter, or `base_url` is no address.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str,
        api_key: str | None = None,
        max_retries: int = 8,
        timeout: float = 600.0,
        requests_per_minute: float | None = None,
        continue_final_message: bool = False,
        **request: Any,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"the address of a server begins with http:// and usually ends with /v1, such as "
                f"http://localhost:8000/v1, got {base_url!r}"
            )
        with needs_extra("openai", "OpenAIPolicy"):
            import openai
        key = api_key or os.environ.get("OPENAI_API_KEY") or "none"
        self.client = openai.AsyncOpenAI(base_url=base_url, api_key=key, timeout=timeout, max_retries=max_retries)
        self._create = self.client.chat.completions.create
        unknown = request.keys() - inspect.signature(self._create).parameters.keys()
        if unknown:
            raise ConfigurationError(
                f"chat completions have no parameter {', '.join(sorted(unknown))}; pass what only your server knows as "
                f"extra_body={{...}}"
            )
        if "continue_final_message" in (request.get("extra_body") or {}):
            raise ConfigurationError(
                "extra_body goes with every request, and continue_final_message with the first one of an episode only: "
                "pass it as continue_final_message=True"
            )
        self.model = model
        self.base_url = base_url
        self.continue_final_message = continue_final_message
        self.request = request
        self._pace = _Pace(requests_per_minute)
        self._first = asyncio.Lock()
        self._has_answered = False

    def begin(self, spec: EpisodeSpec, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> _Dialogue:
        return _Dialogue(self, messages, tools)

    def check_words(self, words: Message, tools: Sequence[ToolSchema]) -> None:
        """Raise a ConfigurationError if the server cannot go on with these words."""
        problem = ""
        if not self.continue_final_message:
            problem = "pass continue_final_message=True if the server has this option, as vLLM has"
        elif words.get("reasoning_content"):
            problem = "a server goes on with content only, not with a thought"
        elif tools and BEGUN_CALL.search(text_of(words)):
            problem = "they may begin a tool call, and the server looks for calls only in the text that the model adds"
        if problem:
            raise ConfigurationError(
                f"the environment gives the first words of the model's answer, {text_of(words)!r}: {problem}"
            )

    async def aclose(self) -> None:
        """Close the connections to the server."""
        await self.client.close()

    async def complete(
        self, messages: list[dict[str, Any]], tools: list[ToolSchema], *, goes_on: bool = False, **limits: Any
    ) -> Any:
        """Return one chat completion, or the rest of the last message if the model `goes_on` with it.

        An `openai.APIError` says that the request failed in spite of its retries, and a ConfigurationError that the
        server has never answered, or will refuse every request alike.
        """
        await self._pace.wait()
        given: dict[str, Any] = {"model": self.model, "messages": messages, **self.request, **limits}
        if tools:
            given["tools"] = tools
        if goes_on:
            given["extra_body"] = {**(self.request.get("extra_body") or {}), **CONTINUE}
        if not self._has_answered:
            async with self._first:
                if not self._has_answered:
                    completion = await self._ask(self._create_first, given, "the first request")
                    self._has_answered = True
                    return completion
        return await self._ask(self._create, given, "a request")

    async def _ask(self, create: Callable[..., Awaitable[Any]], given: dict[str, Any], which: str) -> Any:
        import openai

        try:
            return await create(**given)
        except openai.APIError as error:
            hopeless = (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError)
            if is_overflow(error) or (self._has_answered and not isinstance(error, hopeless)):
                raise
            refused = f"refused {which}" if isinstance(error, openai.APIStatusError) else "does not answer"
            is_elsewhere = isinstance(error, openai.NotFoundError) and not self.base_url.rstrip("/").endswith("/v1")
            hint = "; an address usually ends with /v1" if is_elsewhere else ""
            raise ConfigurationError(
                f"{self.base_url} {refused} for the model {self.model!r}: {error}{hint}"
            ) from error

    async def _create_first(self, **given: Any) -> Any:
        import openai

        retries = min(FIRST_RETRIES, self.client.max_retries)
        try:
            return await self.client.with_options(max_retries=retries).chat.completions.create(**given)
        except openai.RateLimitError:
            if retries == self.client.max_retries:
                raise
        rest = self.client.with_options(max_retries=self.client.max_retries - retries - 1)
        return await rest.chat.completions.create(**given)


class _Pace:
    """Start times of requests, evenly spaced."""

    def __init__(self, per_minute: float | None) -> None:
        if per_minute is not None and per_minute <= 0:
            raise ConfigurationError(f"requests_per_minute must be positive or None, got {per_minute}")
        self._interval = 0.0 if per_minute is None else 60.0 / per_minute
        self._next = 0.0  # in the loop's time

    async def wait(self) -> None:
        """Return when the next request may start."""
        if not self._interval:
            return
        now = asyncio.get_running_loop().time()
        start = max(now, self._next)
        self._next = start + self._interval
        await asyncio.sleep(start - now)


class _Dialogue(TokenlessConversation):
    """One conversation; the server is sent all of it in each turn, and keeps its tokens to itself."""

    def __init__(self, policy: OpenAIPolicy, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> None:
        self._words = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        if self._words is not None:
            policy.check_words(self._words, tools)
        self._policy = policy
        self._messages = as_requests(messages)
        self._tools = list(tools)

    async def act(self, *, max_tokens: int | None = None, stop: tuple[str, ...] = ()) -> Act:
        import openai

        limits, goes_on = self._limits(max_tokens, stop), self._words is not None
        try:
            completion = await self._policy.complete(self._messages, self._tools, goes_on=goes_on, **limits)
        except openai.APIError as error:
            if not is_overflow(error):
                raise
            raise OverlongPromptError(f"the messages are too long for {self._policy.model}: {error}") from error
        choice, usage = completion.choices[0], completion.usage
        message = as_message(choice.message)
        if self._words is not None:
            if message.get("reasoning_content"):
                raise ConfigurationError(
                    f"the environment gave the first words of the answer, and {self._policy.base_url} took the rest "
                    f"for a thought: start the server without a reasoning parser"
                )
            self._messages.pop()
            message, self._words = continued(self._words, message), None
        self._messages.append(as_request(message))
        details = usage and usage.prompt_tokens_details
        return Act(
            message=message,
            num_tokens=usage.completion_tokens if usage else 0,
            num_prompt_tokens=usage.prompt_tokens if usage else 0,
            num_cached_tokens=(details.cached_tokens or 0) if details else 0,
            stop=self._cut(limits) if choice.finish_reason == "length" else None,
        )

    def _limits(self, max_tokens: int | None, stop: tuple[str, ...]) -> dict[str, Any]:
        own, limits = self._policy.request, dict[str, Any]()
        if max_tokens is not None:
            name = next((limit for limit in TOKEN_LIMITS if own.get(limit) is not None), TOKEN_LIMITS[0])
            limits[name] = min(max_tokens, own.get(name) or max_tokens)
        if stop:
            texts = own.get("stop") or []
            limits["stop"] = [*([texts] if isinstance(texts, str) else texts), *stop]
        return limits

    def _cut(self, limits: dict[str, Any]) -> StopReason:
        limited = any({**self._policy.request, **limits}.get(name) is not None for name in TOKEN_LIMITS)
        return StopReason.TURN_TRUNCATED if limited else StopReason.CONTEXT_OVERFLOW

    async def observe(self, messages: Sequence[Message], *, last: bool, whole: bool = False) -> None:
        self.check_room(whole=whole)
        self._messages += as_requests(messages)

    def further(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> _Dialogue:
        return _Dialogue(self._policy, messages, tools)


def is_overflow(error: Exception) -> bool:
    """Return whether a server refused a conversation because the model's context is too short for it."""
    return getattr(error, "status_code", None) == 400 and bool(CONTEXT_IS_FULL.search(str(error)))
