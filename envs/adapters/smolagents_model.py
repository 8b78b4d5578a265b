"""smolagents_model: a served model for smolagents' ToolCallingAgent, which gets the messages that it was trained on."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from ..core import Message, text_of
from ..extras import needs_extra
from ..policies.openai_messages import as_message, as_request
from .smolagents_episode import FINAL, ToolError

TASK, OBSERVATION = "New task:\n", "Observation:\n"  # how smolagents begins its messages
RETRY, AGAIN = "\nNow let's retry:", "\nPlease try again or use another tool"  # how it goes on after an error


def smolagents_model(
    model: str, base_url: str, *, system: str | None = None, api_key: str | None = None, **request: Any
) -> Any:
    """Return a model for one `ToolCallingAgent`, whose requests are those of `gymnast eval --url`.

        model = smolagents_model("my-agent", "http://gpu1:8000/v1", temperature=0.0)
        agent = smolagents.ToolCallingAgent(tools=episode.tools, model=model)

    smolagents itself rewrites a history: calls and results become text of the assistant and the user, behind a system
    prompt of its own. Here the model gets its own answers back as it gave them, results as messages of the role `tool`,
    the tools of a `SmolagentsEpisode` by the schemas of the environment, and no system prompt but `system`. Results of
    several calls in one answer stay one text, as smolagents keeps them: the first call has all of it.

    Args:
        model: The name of the model on the server.
        base_url: The server's address, which usually ends with /v1.
        system: The system message of training; `SmolagentsEpisode.instructions` has it.
        api_key: By default the environment variable OPENAI_API_KEY; servers of your own often need none.
        request: Further parameters of chat completions, such as `temperature`, `max_tokens`, `extra_body`.

    Raises:
        MissingExtraError: smolagents or openai is not installed.

    The agent gets a TypeError if it is a `CodeAgent`, or plans (`planning_interval`): these need smolagents' own
    messages. A ValueError says that two agents share the model.
    """
    with needs_extra("openai", "smolagents_model"):
        import openai
    with needs_extra("smolagents", "smolagents_model"):
        make = _model_class()
    key = api_key or os.environ.get("OPENAI_API_KEY") or "none"
    return make(model, openai.OpenAI(base_url=base_url, api_key=key, max_retries=8), system, request)


@functools.cache
def _model_class() -> Any:
    """Return the class of these models, made here since smolagents is imported lazily."""
    models: Any = importlib.import_module("smolagents.models")

    class TrainedModel(models.Model):
        def __init__(self, model: str, client: Any, system: str | None, request: dict[str, Any]) -> None:
            super().__init__(model_id=model)
            self.client, self.system, self.request = client, system, request
            self.answers: list[Message] = []  # of the run, each of which is one step of the agent

        def generate(
            self,
            messages: list[Any],
            stop_sequences: list[str] | None = None,
            response_format: dict[str, str] | None = None,
            tools_to_call_from: list[Any] | None = None,
            **_: Any,
        ) -> Any:
            if tools_to_call_from is None and stop_sequences is None:  # the agent's last words after `max_steps`
                return models.ChatMessage(role="assistant", content="")
            if tools_to_call_from is None:
                raise TypeError("smolagents_model is for a ToolCallingAgent that does not plan; take OpenAIModel")
            answered = sum(message.role == "assistant" for message in messages)
            if answered > len(self.answers):
                raise ValueError("an agent needs a smolagents_model of its own, and keeps no memory of another model")
            del self.answers[answered:]  # of a run before
            schemas = {
                tool.name: getattr(tool, "schema", models.get_tool_json_schema(tool)) for tool in tools_to_call_from
            }
            names = {schema["function"]["name"]: name for name, schema in schemas.items() if schema is not None}
            given: dict[str, Any] = {"model": self.model_id, **self.request}
            given["messages"] = [as_request(message) for message in _as_trained(messages, self.answers, self.system)]
            if offered := [schema for schema in schemas.values() if schema is not None]:
                given["tools"] = offered
            completion = self.client.chat.completions.create(**given)
            usage, answer = completion.usage, as_message(completion.choices[0].message)
            self.answers.append(answer)
            calls = [
                call | {"function": {**call["function"], "name": names.get(name := call["function"]["name"], name)}}
                for call in as_request(answer).get("tool_calls", [])
            ]
            if not calls and None in schemas.values():  # a message without a call is the answer in this environment
                answer_call = {"name": FINAL, "arguments": {"answer": text_of(answer)}}
                calls = [{"id": "answer", "type": "function", "function": answer_call}]
            tokens = models.TokenUsage(usage.prompt_tokens, usage.completion_tokens)
            content = text_of(answer)
            return models.ChatMessage(
                role="assistant", content=content, tool_calls=calls, raw=completion, token_usage=tokens
            )

    return TrainedModel


def _as_trained(messages: Sequence[Any], answers: Sequence[Message], system: str | None) -> Iterator[Message]:
    """Yield the messages of an agent as the environment gave them, with the model's own answers."""
    if system is not None:
        yield {"role": "system", "content": system}
    own = iter(answers)
    calls: list[Any] = []
    for message in messages:
        text = message.content if isinstance(message.content, str) else message.content[0]["text"]
        if message.role == "user":
            yield {"role": "user", "content": text.removeprefix(TASK)}
        elif message.role == "assistant":
            answer = next(own)
            yield answer
            calls = list(answer.get("tool_calls", []))
        elif message.role == "tool-response":
            result = _result(text)
            for call in calls:
                yield {"role": "tool", "tool_call_id": call["id"], "content": result}
                result = ""
            if result:
                yield {"role": "user", "content": result}
            calls = []


def _result(text: str) -> str:
    """Return the result or the error that smolagents put into words of its own."""
    if text.startswith(OBSERVATION):
        return text.removeprefix(OBSERVATION)
    error = text.partition("Error:\n")[2].partition(RETRY)[0]
    ours = error.partition(f" {ToolError.__name__}: ")[2].removesuffix(AGAIN)
    return ours or f"Error: {error}"
