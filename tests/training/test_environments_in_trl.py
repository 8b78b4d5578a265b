"""`to_trl`: our environments in TRL's GRPOTrainer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import datasets
import pytest
import trl
from transformers.utils.chat_template_utils import get_json_schema
from trl.chat_template_utils import qwen3_template

from gymnast.envs import BrokenEnvironmentError, Calculator, StopReason, ToolEnv, final_answer, tool, tool_call
from gymnast.envs.adapters import GymnasiumEnv, MCPTools, to_trl, trl_rows
from gymnast.trainer.testing.tiny import make_tiny_model, tokenizer_for, warm_up

ROW = {"question": "What is 3 times 4?", "answer": 12}


class Graded(ToolEnv):
    """Breaks on demand; the grade tells the reason of the end."""

    @tool
    def press(self, times: int = 1, deep: bool | None = None) -> str:
        """Press a button.

        Args:
            times: How often.
            deep: Whether to press deep.
        """
        if times == 0:
            raise BrokenEnvironmentError("no button")
        if times < 0:
            raise ValueError("times must be positive")
        self.reward = 0.25 * times
        self.truncated = times == 3
        return "pressed"

    def grade(self, stop: StopReason) -> float:
        return {StopReason.MODEL_STOPPED: 10.0, StopReason.ENV_TRUNCATED: 20.0}[stop]


def test_the_tools_are_methods_that_trl_describes_as_we_do() -> None:
    for environment in (Calculator(), Graded()):
        made = to_trl(environment)()
        assert type(made).__name__ == type(environment).__name__
        for name, entry in environment.tools.items():
            theirs = get_json_schema(getattr(made, name))["function"]
            ours = entry.schema["function"]
            assert theirs["name"] == ours["name"] == name
            assert theirs["description"] == ours["description"]
            assert list(theirs["parameters"]["properties"]) == list(ours["parameters"]["properties"])


def test_an_episode_is_stepped_and_graded_as_ours() -> None:
    made: Any = to_trl(Calculator())()
    [row] = trl_rows([ROW])
    assert row == {**ROW, "prompt": [{"role": "user", "content": ""}]}
    assert made.reset(**row) == ROW["question"]
    assert made.multiply(a=3, b="4") == "12"
    assert made.multiply(a=3) == "Error: multiply: missing argument 'b'"
    made.final_answer(answer=12)
    assert made.final_answer(answer=13) == "The episode is over."
    assert made.get_reward() == 1.0
    with pytest.raises(RuntimeError, match="called before reset"):
        made.get_reward()


def test_grades_truncations_and_prompts() -> None:
    made: Any = to_trl(Graded())()
    [row] = trl_rows([{"prompt": "go"}])
    assert made.reset(**row) is None  # the row has the prompt already
    assert made.press(times=-1) == "Error: ValueError: times must be positive"
    made.press()
    assert made.get_reward() == 10.25
    made.reset(**row)
    made.press(times=3)
    assert made.press() == "The episode is over."
    assert made.get_reward() == 20.75


def test_a_broken_environment_is_never_a_reward() -> None:
    made: Any = to_trl(Graded())()
    made.reset(prompt="go")
    made.press(times=0)
    with pytest.raises(BrokenEnvironmentError, match="the episode failed, so it has no reward"):
        made.get_reward()
    made.reset(prompt="go")
    assert made.get_reward() == 10.0


def test_members_of_a_group_begin_in_the_same_state() -> None:
    cards = to_trl(GymnasiumEnv("Blackjack-v1", actions=["stick", "hit"]))
    first, second, other = cards(), cards(), cards()
    prompts = [
        generation.reset(**trl_rows([{"id": name}])[0]) for generation, name in ((first, 1), (second, 1), (other, 2))
    ]
    assert prompts[0] == prompts[1] != prompts[2]


def test_what_trl_cannot_take_is_refused() -> None:
    class Hidden(ToolEnv):
        @tool(name="reset")
        def begin_again(self) -> str:
            """Begin again."""
            return ""

    with pytest.raises(ValueError, match="TRL hides a tool named 'reset'"):
        to_trl(Hidden())
    with pytest.raises(ValueError, match="ToolEnv knows only a part of them then"):
        to_trl(ToolEnv([MCPTools("http://127.0.0.1:9/mcp"), final_answer]))
    with pytest.raises(TypeError, match="to_trl takes a ToolEnv"):
        to_trl(object())  # type: ignore[arg-type]
    made: Any = to_trl(Calculator())()
    with pytest.raises(KeyError):
        made.reset(prompt="no question")


def test_trl_trains_a_step_on_our_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "CI", "1")  # TRL then sends no telemetry
    monkeypatch.setitem(os.environ, "TRL_EXPERIMENTAL_SILENCE", "1")
    environment = Calculator()
    prompt = {"role": "user", "content": ROW["question"]}
    result = {"role": "tool", "name": "multiply", "content": "12"}
    say = {"role": "assistant", "content": "12"}
    schemas = environment.tool_schemas()
    right = tool_call("final_answer", answer=12), {**result, "name": "final_answer"}
    wrong = tool_call("final_answer", answer=4), {**result, "name": "final_answer", "content": "4"}
    demonstrations: Any = [([prompt, *end, say], schemas) for end in (right, wrong)]
    tokenizer: Any = tokenizer_for(demonstrations * 20)
    model = make_tiny_model(tokenizer, hidden_size=64, num_layers=1)
    warm_up(model, tokenizer, demonstrations, steps=30, batch_size=4)
    tokenizer.response_template = qwen3_template
    trainer = trl.GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        environment_factory=to_trl(environment),
        reward_funcs=[],
        train_dataset=datasets.Dataset.from_list(trl_rows([ROW] * 4)),
        args=trl.GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=1,
            per_device_train_batch_size=16,
            num_generations=16,
            max_completion_length=64,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
    )
    trainer.train()
    logs = trainer.state.log_history[0]
    assert 0 < logs["rewards/Calculator/mean"] < 1
    assert logs["tools/call_frequency"] > 0.5
