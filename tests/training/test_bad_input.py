"""Bad environments, rows, models and tokenizers.

Each is an error that names the value and the remedy, before anything is generated.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pandas
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel, T5Config, T5ForConditionalGeneration

from gymnast.envs import ConfigurationError, Message, ToolEnv, tool
from gymnast.trainer import GRPOTrainer
from gymnast.trainer.setup.processing import load_processing
from gymnast.trainer.testing.tiny import make_tiny_tokenizer

from .buttons import ROWS, Buttons, config, make_trainer, model, tokenizer


def look() -> str:
    """Look again."""
    return "two are lit"


# Rows.


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"bad": 1}],
            r"row 0 of train_dataset: MissingColumnError: the row has no column 'good'; it has \['bad'\] "
            r"\(File .*reset_task\)$",
        ),
        ([{"good": "left"}, 5], "row 1 of train_dataset must be a mapping, got int"),
        (iter([{"good": "left"}]), "train_dataset must be a sequence of rows.*got list_iterator"),
        ("left", "train_dataset must be a sequence of rows.*got str"),
    ],
)
def test_rows_that_the_environment_cannot_use(rows: Any, message: str, silent: Any, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make_trainer(tmp_path, rows=rows, generator=silent)


def schema_of(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": "A button.", "parameters": parameters}}


@pytest.mark.parametrize("as_table", [False, True], ids=["list", "datasets"])
def test_a_schema_without_a_function_of_its_name_is_refused_before_training(
    as_table: bool, silent: Any, tmp_path: Path
) -> None:
    tools = [["left", "right"], [schema_of("left")], [schema_of("lefd")]]
    rows: Any = [{"good": "left", "tools": json.dumps(tools[max(0, index - 498)])} for index in range(501)]
    rows = datasets.Dataset.from_list(rows) if as_table else rows
    with pytest.raises(ValueError, match=r"row 500 of train_dataset: .*no tool 'lefd'\. Did you mean 'left'\?"):
        make_trainer(tmp_path, rows=rows, generator=silent)
    make_trainer(tmp_path, rows=[rows[index] for index in range(500)], generator=silent)


def test_a_row_may_choose_a_tool_that_reset_task_adds(silent: Any, tmp_path: Path) -> None:
    class Adds(Buttons):
        def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
            self.tools = [*self.tools.values(), tool(name="listen")(look)]
            return super().reset_task(task)

    make_trainer(tmp_path, environment=Adds, rows=[{"good": "left", "tools": ["left", "listen"]}], generator=silent)


def test_the_search_for_wrong_tools_leaves_the_rows_alone_and_has_a_time_limit(silent: Any, tmp_path: Path) -> None:
    class Draws(Buttons):
        def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
            if task["deck"].pop() == "slow":
                stop.wait(30)
            return super().reset_task(task)

    stop = threading.Event()
    rows: Any = [{"good": "left", "deck": ["a", "b"], "tools": ["left"]}]
    make_trainer(tmp_path, environment=Draws, rows=rows, generator=silent)
    assert rows[0]["deck"] == ["a", "b"]
    rows = [{"good": "left", "deck": ["a"]}, {"good": "left", "deck": ["slow"], "tools": ["lefd"]}]
    try:
        with pytest.raises(ValueError, match=r"with row 1 of train_dataset: TimeoutError: .* within step_timeout=1 s"):
            make_trainer(tmp_path, environment=Draws, rows=rows, generator=silent, step_timeout=1.0)
    finally:
        stop.set()


def test_a_data_frame_and_a_single_row_are_refused(silent: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"train_dataset is a data frame; pass its rows: frame.to_dict\('records'\)"):
        make_trainer(tmp_path, rows=pandas.DataFrame(ROWS), generator=silent)
    trainer = make_trainer(tmp_path, generator=silent)
    with pytest.raises(TypeError, match="rows must be a sequence of rows, such as a list of dicts, got dict"):
        trainer.rollout(ROWS[0])  # type: ignore[arg-type]


def test_a_million_rows_are_not_read_before_training(silent: Any, tmp_path: Path) -> None:
    class Million(Sequence[dict[str, Any]]):
        read = 0

        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, index: Any) -> Any:
            self.read += 1
            return ROWS[index % 4]

    rows = Million()
    make_trainer(tmp_path, rows=rows, generator=silent)
    assert rows.read <= 101  # the first row twice


def test_a_failed_reset_is_reported_in_one_line(silent: Any, tmp_path: Path) -> None:
    class Down(Buttons):
        def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
            try:
                raise OSError("no route to host")
            except OSError as error:
                raise ConnectionError("the database is down") from error

    message = r"Down cannot begin an episode with row 0.*Error: the database is down \(File .*reset_task\)$"
    with pytest.raises(ValueError, match=message) as caught:
        make_trainer(tmp_path, environment=Down, generator=silent)
    assert caught.value.__cause__ is caught.value.__context__ is None


NAMED = [{"environment": "buttons", "good": "left"}, {"environment": "button", "good": "left"}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"eval_rows": {"first": ROWS, "second": [{"bad": 1}]}}, r"row 0 of eval_dataset\['second'\]"),
        (
            {"environment": {"buttons": Buttons}, "rows": NAMED},
            r"row 1 of train_dataset.*'buttons'.*got 'button'",
        ),
        ({"environment": ToolEnv(), "rows": [{"question": "?"}]}, r"no 'prompt'.*question"),
    ],
    ids=["evaluation", "no such environment", "no prompt"],
)
def test_a_row_that_is_wrong_for_its_place(given: Any, message: str, silent: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path, generator=silent, **given)


# Models and tokenizers.


def trainer_with(folder: Path, generator: Any, *, agent: Any = None, words: Any = None) -> GRPOTrainer:
    return GRPOTrainer(
        model=agent or model(),
        environment=Buttons(),
        args=config(folder),
        train_dataset=ROWS,
        processing_class=words,
        generator=generator,
    )


def with_template(template: str | None) -> Any:
    words = copy.deepcopy(tokenizer())
    words.chat_template = template
    return words


PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_an_argument_that_the_template_never_reads(silent: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"the chat template has no 'add_generation_promt' \(did you mean"):
        make_trainer(tmp_path, generator=silent, chat_template_kwargs={"add_generation_promt": True})


def test_a_tokenizer_that_cannot_be_used(silent: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no chat template"):
        trainer_with(tmp_path, silent, words=with_template(None))
    with pytest.raises(ConfigurationError, match=r"\['look', 'left', 'right'\].*does not render tools"):
        trainer_with(tmp_path, silent, words=with_template(PLAIN))
    with pytest.raises(ValueError, match="processing_class is needed"):
        trainer_with(tmp_path, silent)
    with pytest.raises(TypeError, match="processing_class must be a tokenizer, or a processor with one, got str"):
        trainer_with(tmp_path, silent, words="Qwen/Qwen3-0.6B")


SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 32}


@pytest.mark.parametrize(
    "wrong",
    [
        torch.nn.Linear(2, 2),
        BertModel(BertConfig(vocab_size=8, **SMALL)),
        T5ForConditionalGeneration(T5Config(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=1)),
        7,
    ],
    ids=lambda item: type(item).__name__,
)
def test_a_model_of_the_wrong_kind(wrong: Any, silent: Any, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=r"model.*got|cannot be used as is for training"):
        trainer_with(tmp_path, silent, agent=wrong, words=tokenizer())


def test_options_for_loading_a_loaded_model(silent: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model_init_kwargs"):
        make_trainer(tmp_path, generator=silent, model_init_kwargs={"dtype": "bfloat16"})


def test_the_tokenizer_is_loaded_from_the_place_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def from_pretrained(name: str, **options: Any) -> Any:
        asked.append((name, options))
        return tokenizer()

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", from_pretrained)
    agent = model()
    agent.config._name_or_path = "some/model"
    places = {"revision": "v2", "trust_remote_code": True, "token": "secret", "cache_dir": "models"}
    assert load_processing(agent, None, {**places, "dtype": "bfloat16"}) == (tokenizer(), None)
    assert asked == [("some/model", places)]


def test_a_tokenizer_with_other_ids_than_the_models_is_named(tmp_path: Path) -> None:
    agent = model()
    tokenizer().save_pretrained(tmp_path)
    agent.config._name_or_path = str(tmp_path)
    longer = copy.deepcopy(tokenizer())
    longer.add_tokens(["<a>", "<b>"])
    assert load_processing(agent, longer) == (longer, None)  # without a warning, which would be an error
    with pytest.warns(
        UserWarning, match=r"not the tokenizer of .* tokens have other ids or none, such as .*leave proc"
    ):
        load_processing(agent, make_tiny_tokenizer(["entirely other words"] * 3))


def test_generation_rows_has_no_effect_with_a_given_generator(silent: Any, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="generation_rows: no effect, because a generator was given"):
        make_trainer(tmp_path, generator=silent, generation_rows=7)


def test_training_needs_tasks(silent: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="train_dataset"):
        make_trainer(tmp_path, rows=None, generator=silent).train()
