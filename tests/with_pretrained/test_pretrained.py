"""What tiny models hide: real merges and spaces, a template without tools, 49,152 tokens, weights that know things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig

from gymnast.envs import Message
from gymnast.trainer import ChatFormat, GRPOConfig, GRPOTrainer

from ..cli.conftest import run as run  # a fixture
from ..cli.running import Run
from ..importing import benchmark
from .capitals import Capitals

FOLDER = benchmark("pretrained").model_folder()
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the pretrained model is not there: make pretrained")

HARD_TEXTS = [
    " leading and trailing ",
    "\n\n\nlines\n\n \n",
    "  12  345\t6\n 7",
    "é, e\u0301, 漢字, ‏עברית, 🙂👩‍🚀🇫🇷",
    "",
    "def f(x):\n        return x  # <b>",
]


@pytest.mark.parametrize("answer", [" Paris. ", "", "12  30\n\n"])
@pytest.mark.parametrize("text", HARD_TEXTS)
def test_appended_tokens_are_those_of_the_whole_conversation(tokenizer: Any, text: str, answer: str) -> None:
    chat = ChatFormat(tokenizer)
    messages: list[Message] = [{"role": "user", "content": text}]
    reply: Message = {"role": "user", "content": text}
    answer_ids = tokenizer(answer + tokenizer.eos_token).input_ids
    ids = chat.prompt_tokens(messages, []).ids + answer_ids
    assert chat.parse(chat.prompt_tokens(messages, []), answer_ids, []).get("content") == answer
    ids += chat.observation_tokens([reply], ended_by=answer_ids[-1], last=False).ids
    whole = [*messages, {"role": "assistant", "content": answer}, reply]
    assert ids == tokenizer.apply_chat_template(whole, add_generation_prompt=True)["input_ids"]
    assert tokenizer.decode(chat.template.encode(text).ids) == text


def test_the_tokenizer_is_the_published_one(tokenizer: Any) -> None:
    assert tokenizer.tokenize("a  12 \n 3") == ["a", "ĠĠ", "1", "2", "ĠĊ", "Ġ", "3"]
    assert (len(tokenizer), tokenizer.pad_token_id, tokenizer.model_max_length) == (49_152, 2, 8192)


def trainer_of(folder: Path, rows: list[Any], peft_config: Any = None, **options: Any) -> Any:
    return GRPOTrainer(
        model=str(FOLDER),
        environment=Capitals(),
        reward_funcs=lambda completions, **_: [float(index) for index in range(len(completions))],
        train_dataset=rows,
        tool_format="react",
        peft_config=peft_config,
        args=GRPOConfig(
            output_dir=str(folder),
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            max_steps=1,
            logging_steps=1,
            num_generations=2,
            per_device_train_batch_size=2,
            max_turns=2,
            **options,
        ),
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """An episode with a prompted tool, and its trainer."""
    rows = [{"country": "France", "people": True}]
    folder = tmp_path_factory.mktemp("run")
    trainer = trainer_of(folder, rows, max_completion_length=80)
    [episode] = trainer.rollout(rows, temperature=0.0)
    return trainer, episode


def test_a_prompted_tool_is_called_and_its_result_is_not_trained_on(played: tuple[Any, Any], tokenizer: Any) -> None:
    _, episode = played
    [trace] = episode.traces
    assert [(call.name, call.outcome) for call in episode.tool_calls] == [("population", "ok")], trace
    assert len(episode.turns) == 2
    assert trace.drift == 0
    shown = [token for token, sampled in zip(trace.completion_ids, trace.mask, strict=True) if not sampled]
    country = episode.turns[0].message["tool_calls"][0]["function"]["arguments"]["country"]
    result = f"<|im_start|>user\nObservation:   {country} 🙂\n\n has 68  million <|im_end|><|im_end|>\n"
    assert tokenizer.decode(shown) == f"\n{result}<|im_start|>assistant\n"
    assert shown.count(tokenizer.eos_token_id) == 1  # the tool's own is spelled out


def test_sampled_tokens_have_the_probabilities_of_one_forward_pass(played: tuple[Any, Any]) -> None:
    trainer, episode = played
    [trace] = episode.traces
    with torch.no_grad():
        ids = torch.tensor([[*trace.prompt_ids, *trace.completion_ids]])
        logprobs = trainer.model(input_ids=ids).logits.double().log_softmax(-1)[0, len(trace.prompt_ids) - 1 :]
    for place, (token, got) in enumerate(zip(trace.completion_ids, trace.logprobs, strict=True)):
        if trace.mask[place]:
            # Those of transformers itself, with a cache and without, differ by 2e-5 in float32.
            assert abs(logprobs[place, token].item() - got) < 5e-5


@pytest.mark.parametrize(
    "options",
    [{"bf16": True}, {"peft_config": LoraConfig(r=4, target_modules="all-linear"), "learning_rate": 1e-3}],
    ids=["bf16", "lora"],
)
def test_a_step_of_training(options: Any, tmp_path: Path) -> None:
    rows = [{"country": "France"}]
    trainer = trainer_of(tmp_path, rows, max_completion_length=12, temperature=2.0, **options)
    before = {
        name: weight.detach().clone() for name, weight in trainer.model.named_parameters() if weight.requires_grad
    }
    trainer.train()
    logs = trainer.state.log_history[0]
    assert logs["tokens/drift"] == logs["steps/nonfinite"] == 0
    assert logs["grad_norm"] > 0
    changed = [
        name for name, weight in trainer.model.named_parameters() if name in before and (weight != before[name]).any()
    ]
    assert len(changed) > len(before) / 3


@pytest.mark.parametrize(("environment", "options"), [("Plain", []), ("Capitals", ["--tool-format", "react"])])
def test_the_commands_take_the_model_and_it_knows_a_capital(run: Run, environment: str, options: list[str]) -> None:
    Path("rows.jsonl").write_text('{"country": "France"}\n')
    shared = [
        f"{Path(__file__).parent / 'capitals.py'}:{environment}",
        "--tasks",
        "rows.jsonl",
        "--model",
        FOLDER,
        "--json",
        *options,
    ]
    findings = {finding["name"]: finding for finding in run("check", *shared).json["checks"]}
    assert findings["model: template"]["outcome"] == "pass"
    assert findings["model: tool format"]["outcome"] == ("warn" if options else "skip")
    assert "134.5 million weights" in findings["model: first batch"]["advice"]
    results = run("eval", *shared, "--temperature", 0, "--max-tokens", 16)
    assert results.json["pass@1"] == 1.0, results
