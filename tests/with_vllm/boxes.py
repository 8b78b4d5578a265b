"""An environment for agents of smolagents, and a tiny model that plays it by calls and by code."""

from __future__ import annotations

import importlib
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gymnast.envs import Message, ScriptedPolicy, ToolEnv, tool, tool_call
from gymnast.envs.adapters import SmolagentsEpisode
from gymnast.trainer.testing.demonstrations import demonstrations
from gymnast.trainer.testing.tiny import make_tiny_model, tokenizer_for, warm_up

smolagents: Any = importlib.import_module("smolagents")

ROWS = [{"box": box, "number": number} for box in range(10, 50) for number in range(10, 30)]
random.Random(0).shuffle(ROWS)
TRAINING, HELD_OUT = ROWS[:-32], ROWS[-32:]
SHORT: dict[str, Any] = {  # prompts of an agent, whose own have more text than the tiny model's context
    "system_prompt": "Tools: {{ tools.keys() | join(', ') }}",
    "planning": dict.fromkeys(["initial_plan", "update_plan_pre_messages", "update_plan_post_messages"], ""),
    "managed_agent": {"task": "", "report": ""},
    "final_answer": {"pre_messages": "", "post_messages": ""},
}


class Boxes(ToolEnv):
    """One box has a number, and the others are empty."""

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        self.box, self.number = task["box"], task["number"]
        return [{"role": "user", "content": f"Which number is in box {self.box}?"}]

    @tool
    def look(self, box: int) -> int:
        """Look into a box.

        Args:
            box: Which one.
        """
        if box != self.box:
            raise ValueError("this box is empty")
        return self.number

    @tool(final=True)
    def final_answer(self, answer: int) -> str:
        """Give the final answer.

        Args:
            answer: The number.
        """
        self.reward = float(answer == self.number)
        return "thanks"


def _box_in(text: str) -> int:
    return int(text.removesuffix("?").split()[-1])


def _oracle(messages: Sequence[Any]) -> Message:
    if len(messages) == 1:
        return tool_call("look", box=_box_in(messages[0]["content"]))
    return tool_call("final_answer", answer=int(messages[-1]["content"]))


class _Coder(smolagents.Model):
    """Writes the right code, and keeps the conversation as a server would get it."""

    def generate(self, messages: Any, **_: Any) -> Any:
        roles = smolagents.models.tool_role_conversions
        given = smolagents.models.get_clean_message_list(messages, roles, flatten_messages_as_text=True)
        code = f"<code>\nfinal_answer(look({_box_in(given[-1]['content'])}))\n</code>"
        self.conversation = [{**item, "role": item["role"].value} for item in given]
        self.conversation.append({"role": "assistant", "content": code})
        return smolagents.ChatMessage(role="assistant", content=code)


def _coded(row: dict[str, Any]) -> list[Any]:
    """Return the messages of an episode that a CodeAgent plays."""
    model = _Coder(model_id="coder")
    with SmolagentsEpisode(Boxes(), row) as episode:
        agent = smolagents.CodeAgent(tools=episode.tools, model=model, prompt_templates=SHORT, verbosity_level=0)
        agent.run(episode.prompt)
    assert episode.reward == 1.0
    return model.conversation


def save_tiny_model(folder: Path) -> None:
    """Make a model that was shown calls, some of them wrong, and code."""
    shown = demonstrations(Boxes(), TRAINING, ScriptedPolicy(_oracle), count=200, success=0.8)
    calls = [(episode.messages, episode.tools) for episode in shown]
    conversations: list[Any] = [*calls, *((_coded(row), None) for row in TRAINING[:100])]
    tokenizer = tokenizer_for(conversations, 512)
    model = make_tiny_model(tokenizer)
    warm_up(model, tokenizer, conversations, steps=120, batch_size=16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
