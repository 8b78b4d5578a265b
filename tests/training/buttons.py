"""A task that a tiny model learns in a few steps: press the right one of two buttons."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM, TrainerCallback

from gymnast.envs import Message, ToolEnv, tool, tool_call
from gymnast.trainer import (
    AgentTrainer,
    EveryTurn,
    Generation,
    GenerationRequest,
    Generator,
    GRPOTrainer,
    TransformersGenerator,
    whole_weights,
)
from gymnast.trainer.generation.contract import GenerationError
from gymnast.trainer.testing.tiny import make_tiny_model, make_tiny_tokenizer, warm_up

QUESTION = "Press a button."
SHARDED: dict[str, Any] = {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]}}
ROWS: list[dict[str, Any]] = [{"good": "left", "id": index} for index in range(4)]


def zero(stage: int, **options: Any) -> dict[str, Any]:
    """A configuration of DeepSpeed that leaves all to the trainer's, but for these options of ZeRO."""
    auto = ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps", "gradient_clipping")
    return {**dict.fromkeys(auto, "auto"), "zero_optimization": {"stage": stage, **options}}


class Buttons(ToolEnv):
    """`look` gives no information; `left` and `right` end the episode. The row says which one is right."""

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        self.good = task["good"]
        return [{"role": "user", "content": QUESTION}]

    @tool
    def look(self) -> str:
        """Look at the buttons."""
        return "one is lit"

    @tool(final=True)
    def left(self) -> str:
        """Press the left button."""
        self.reward = self.metrics["success"] = float(self.good == "left")
        return "done"

    @tool(final=True)
    def right(self) -> str:
        """Press the right button."""
        self.reward = self.metrics["success"] = float(self.good == "right")
        return "done"


forget = EveryTurn(lambda messages: messages[:1])
"""For `compact=`: each turn begins with the question alone, so it is a sample of its own."""


def _demonstration(*names: str) -> list[Message]:
    messages: list[Message] = [{"role": "user", "content": QUESTION}]
    for name in names:
        messages.append(tool_call(name))
        if name == "look":
            messages.append({"role": "tool", "name": "look", "content": "one is lit"})
    return messages


DEMONSTRATIONS = [_demonstration(*names) for names in (("left",), ("right",), ("look", "left"), ("look", "right"))]


@lru_cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Knows the demonstrations' lines as single tokens, so an episode is about 17 + 33 tokens."""
    render: Any = make_tiny_tokenizer([]).apply_chat_template  # its types know neither tool calls nor mappings
    tools = Buttons().tool_schemas()
    texts = [render(list(messages), tools=tools, tokenize=False) for messages in DEMONSTRATIONS]
    return make_tiny_tokenizer([str(text) for text in texts] * 3)


@lru_cache
def _weights() -> dict[str, Any]:
    return _warmed_up().state_dict()


def _warmed_up() -> Qwen3ForCausalLM:
    model = make_tiny_model(tokenizer(), hidden_size=32, num_layers=1)
    conversations = [(demonstration, Buttons().tool_schemas()) for demonstration in DEMONSTRATIONS]
    warm_up(model, tokenizer(), conversations, steps=20, batch_size=8, learning_rate=1e-2)
    return model


def model() -> Qwen3ForCausalLM:
    """A fresh model that calls tools well and presses both buttons about equally often."""
    fresh = make_tiny_model(tokenizer(), hidden_size=32, num_layers=1)
    fresh.load_state_dict({name: value.clone() for name, value in _weights().items()})
    return fresh


def untied() -> Qwen3ForCausalLM:
    """The same model with an output head of its own."""
    tied = model()
    weights = {name: value.clone() for name, value in tied.state_dict().items()}
    tied.config.tie_word_embeddings = False
    fresh = Qwen3ForCausalLM(tied.config)
    fresh.load_state_dict(weights)
    fresh.generation_config = tied.generation_config
    return fresh


def experts() -> Any:
    """A model that has the weights of all its experts in one tensor; its checkpoints have one for each expert."""
    torch.manual_seed(0)
    small: Any = {"moe_intermediate_size": 16, "num_experts": 2, "num_experts_per_tok": 1, "num_hidden_layers": 1}
    small |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 16}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=len(tokenizer()), hidden_size=32, **small))


def adapted() -> Any:
    """The same model with a LoRA adapter to train."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    return get_peft_model(model(), LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))  # type: ignore[arg-type]


def config(folder: Path | str, trainer_class: type[AgentTrainer] = GRPOTrainer, **options: Any) -> Any:
    """A configuration of a few quick steps: 2 groups of 4 in each."""
    defaults: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "seed": 3,
        "max_steps": 1,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 64,
        "max_turns": 4,
        "learning_rate": 2e-3,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "record_run": False,  # reward.png takes longer than such a training
    }
    args = trainer_class.config_class(**(defaults | options))
    if args.fsdp and args.world_size > 1:
        # Accelerate shards weights on GPUs only: make it take these processes for some.
        PartialState().distributed_type = DistributedType.MULTI_GPU
    return args


def make_trainer(
    folder: Path | str,
    trainer_class: type[AgentTrainer] = GRPOTrainer,
    *,
    agent: Any = None,
    environment: Any = None,
    rows: Any = ROWS,
    eval_rows: Any = None,
    reward_funcs: Any = (),
    reward_processing_classes: Any = None,
    callbacks: Any = (),
    generator: Any = None,
    compact: Any = None,
    tool_format: Any = None,
    chat_templates: Any = None,
    **options: Any,
) -> AgentTrainer:
    """A trainer on `Buttons`; `options`, and the name of a generator, go into the configuration."""
    if isinstance(generator, str):
        options["generator"], generator = generator, None
    return trainer_class(
        model=model() if agent is None else agent,
        environment=Buttons() if environment is None else environment,
        args=config(folder, trainer_class, **options),
        train_dataset=rows,
        eval_dataset=eval_rows,
        processing_class=tokenizer(),
        reward_funcs=reward_funcs,
        reward_processing_classes=reward_processing_classes,
        callbacks=callbacks,
        generator=generator,
        compact=compact,
        tool_format=tool_format,
        chat_templates=chat_templates,
    )


class AddsTerm(GRPOTrainer):
    """Adds a term to the loss, as users do: the cross-entropy of one demonstration."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        demonstration = torch.tensor([ids(QUESTION) + call_ids("left")], device=inputs["inputs"]["input_ids"].device)
        term = model(input_ids=demonstration, labels=demonstration).loss
        return super().compute_loss(model, inputs, *args, **kwargs) + 0.1 * term


def ids(text: str) -> list[int]:
    """The tokens of a text."""
    return tokenizer().encode(text, add_special_tokens=False)


def call_ids(name: str) -> list[int]:
    """The tokens of an answer that calls a tool without arguments, with the end of the turn."""
    return ids(f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call><|im_end|>')


class ScriptedGenerator(Generator):
    """A generator whose answer is a function of the request. It keeps the requests."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.requests: list[GenerationRequest] = []

    async def generate(self, request: GenerationRequest) -> Generation:
        self.requests.append(request)
        token_ids = self.answer(request)[: request.max_tokens]
        stopped = token_ids[-1] in request.stop_ids
        return Generation(
            token_ids=token_ids,
            logprobs=[-0.5] * len(token_ids),
            finish="stop" if stopped else "length",
            prompt_ids=request.prompt.ids,
        )

    def load_weights(self, model: Any, version: int) -> None:
        """It has no weights."""

    def close(self) -> None:
        """It holds nothing open."""


class CopyGenerator(Generator):
    """Samples with a whole copy of the weights in training, as an inference engine does."""

    def __init__(self, copied: Any) -> None:
        self.model = copied
        self.inner = TransformersGenerator(self.model, pad_id=0)

    async def generate(self, request: GenerationRequest) -> Generation:
        return await self.inner.generate(request)

    def load_weights(self, model: Any, version: int) -> None:
        self.model.load_state_dict(dict(whole_weights(model)), strict=False)
        self.inner.load_weights(self.model, version)

    def close(self) -> None:
        self.inner.close()


class ShiftedGenerator(TransformersGenerator):
    """Reports log-probabilities that are too low, by a number that depends on the seed of the turn."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, pad_id=0)

    async def generate(self, request: GenerationRequest) -> Generation:
        generation = await super().generate(request)
        shift = 0.4 * (request.seed % 4)
        return replace(generation, logprobs=[logprob - shift for logprob in generation.logprobs])


def sometimes_failing() -> ScriptedGenerator:
    """A generator that fails one request in five; its answers, and so the lengths of episodes, vary with the seed."""

    def answer(request: GenerationRequest) -> list[int]:
        if request.seed % 5 == 0:
            raise GenerationError("no luck")
        return call_ids(("look", "left", "right")[request.seed % 3])

    return ScriptedGenerator(answer)


class Gradients(TrainerCallback):
    """Keeps each step's gradients."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Tensor]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        gradients = {name: parameter.grad for name, parameter in kwargs["model"].named_parameters()}
        self.steps.append({name: gradient.clone() for name, gradient in gradients.items() if gradient is not None})


class Disturbed(TrainerCallback):
    """Rewards of four steps: the second has no episode to learn from, the third a gradient that is not finite.

    `weights` are those after each step. With `nan_here=False` the gradient of this process is finite.
    """

    OPTIONS: ClassVar = {
        **{"max_steps": 4, "scale_rewards": "none", "max_failure_rate": 1.0, "weight_decay": 0.1},
        "loss_type": "grpo",  # the loss is a sum over the tokens of an episode, so it overflows
    }

    def __init__(self, *, nan_here: bool = True) -> None:
        self.nan_here = nan_here
        self.weights: list[dict[str, Tensor]] = []

    def reward(self, completions: list[Any]) -> list[float]:
        if len(self.weights) == 1:
            raise RuntimeError("the judge is gone")
        high = 3e38 if len(self.weights) == 2 and self.nan_here else 1.0
        return [high * (index % 2) for index in range(len(completions))]

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.weights.append({name: weight.clone() for name, weight in whole_weights(kwargs["model"])})


def subprocess_environment() -> dict[str, str]:
    """The environment variables of a program that imports this module by its plain name."""
    own = {"PYTHONPATH": str(Path(__file__).parent), "PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": "1"}
    return os.environ | own
