"""How the models of each family write calls, for the texts on which parsers are compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

Arguments = Mapping[str, Any]


@dataclass(kw_only=True, slots=True, frozen=True)
class Family:
    """How the models of a family write.

    Attributes:
        prefix: What the prompt ends with.
        end: The token that ends a turn.
        call: A tool's name and arguments -> a call.
        close: The end of a call; empty if it has no end marker.
        tokens: The markers, which are tokens of their own.
        thinking: The markers around thoughts; None where there are none.
        wrap: All calls of a turn -> their text, with the wrapper around them.
        message: Text before a call, where it is a message of its own.
        json_arguments: Whether the arguments are JSON, and may be JSON text within it.
    """

    prefix: str
    end: str
    call: Callable[[str, Arguments], str]
    close: str
    tokens: tuple[str, ...] = ()
    thinking: tuple[str, str] | None = ("<think>\n", "\n</think>\n\n")
    wrap: Callable[[list[str]], str] = "\n".join
    message: str = ""
    json_arguments: bool = False

    def calls(self, *calls: tuple[str, Arguments]) -> str:
        return self.wrap([self.call(name, arguments) for name, arguments in calls])

    def broken(self) -> str:
        """A call that lacks the last character before its closing marker."""
        whole = self.call("weather", {"city": "Rome"})
        inner = whole.removesuffix(self.close).rstrip()
        return inner[:-1] + whole[len(inner) :]


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def plain(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value)


def json_call(name: str, arguments: Any, *, form: str, key: str = "arguments") -> str:
    return form.replace("%", f'{{"name": {to_json(name)}, "{key}": {to_json(arguments)}}}')


def named_call(name: str, arguments: Any, *, form: str) -> str:
    return form.replace("NAME", name).replace("%", to_json(arguments))


def tags_call(name: str, arguments: Arguments, *, form: str, pair: str) -> str:
    pieces = [pair.replace("KEY", key).replace("VALUE", plain(value)) for key, value in arguments.items()]
    return form.replace("NAME", name).replace("%", "".join(pieces))


def brace_value(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, list):
        return f"[{','.join(brace_value(item, quote) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{brace_value(item, quote)}' for key, item in value.items())}}}"
    return to_json(value)


def brace_call(name: str, arguments: Arguments, *, form: str, quote: str) -> str:
    return form.replace("%", f"call:{name}{brace_value(dict(arguments), quote)}")


def python_call(name: str, arguments: Arguments) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def bracketed(calls: list[str], *, form: str = "[%]") -> str:
    return form.replace("%", ", ".join(calls))


def between(calls: list[str], *, form: str, by: str = "") -> str:
    return form.replace("%", by.join(calls))


CHATML = "<|im_start|>assistant\n"
LLAMA = "<|start_header_id|>assistant<|end_header_id|>\n\n"
DEEPSEEK = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
)
KIMI = ("tool_calls_section_begin", "tool_calls_section_end", "tool_call_begin", "tool_call_argument_begin")
INVOKE = '<atem:invoke name="NAME">\n%</atem:invoke>'
PARAMETER = "<parameter=KEY>\nVALUE\n</parameter>\n"

FAMILIES: dict[str, Family] = {  # by the names of gymnast's formats
    "hermes": Family(
        prefix=CHATML,
        end="<|im_end|>",
        call=partial(json_call, form="<tool_call>\n%\n</tool_call>"),
        close="</tool_call>",
        tokens=("<tool_call>", "</tool_call>"),
        json_arguments=True,
    ),
    "qwen3_coder": Family(
        prefix=CHATML,
        end="<|im_end|>",
        call=partial(tags_call, form="<tool_call>\n<function=NAME>\n%</function>\n</tool_call>", pair=PARAMETER),
        close="</tool_call>",
        tokens=("<tool_call>", "</tool_call>"),
    ),
    "seed_oss": Family(
        prefix="<seed:bos>assistant\n",
        end="<seed:eos>",
        call=partial(
            tags_call,
            form="<seed:tool_call>\n<function=NAME>\n%</function>\n</seed:tool_call>",
            pair="<parameter=KEY>VALUE</parameter>\n",
        ),
        close="</seed:tool_call>",
        tokens=("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>"),
        thinking=("<seed:think>", "</seed:think>\n"),
    ),
    "minimax_m2": Family(
        prefix="]~b]ai\n",
        end="[e~[",
        call=partial(
            tags_call, form='<invoke name="NAME">\n%</invoke>', pair='<parameter name="KEY">VALUE</parameter>\n'
        ),
        close="</invoke>",
        tokens=("<minimax:tool_call>", "</minimax:tool_call>"),
        wrap=partial(between, form="<minimax:tool_call>\n%\n</minimax:tool_call>", by="\n"),
    ),
    "glm4": Family(
        prefix="<|assistant|>",
        end="<|user|>",
        call=partial(
            tags_call,
            form="<tool_call>NAME\n%</tool_call>",
            pair="<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n",
        ),
        close="</tool_call>",
        tokens=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        thinking=("\n<think>", "</think>\n"),
    ),
    "gemma4": Family(
        prefix="<|turn>model\n",
        end="<|tool_response>",
        call=partial(brace_call, form="<|tool_call>%<tool_call|>", quote='<|"|>'),
        close="<tool_call|>",
        tokens=("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
        thinking=("<|channel>thought\n", "<channel|>"),
        wrap="".join,
    ),
    "functiongemma": Family(
        prefix="<start_of_turn>model\n",
        end="<start_function_response>",
        call=partial(brace_call, form="<start_function_call>%<end_function_call>", quote="<escape>"),
        close="<end_function_call>",
        tokens=("<start_function_call>", "<end_function_call>", "<escape>"),
        thinking=None,
        wrap="".join,
    ),
    "deepseek_v3": Family(
        prefix="<｜Assistant｜>",
        end="<｜end▁of▁sentence｜>",
        call=partial(
            named_call,
            form="<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n%\n```<｜tool▁call▁end｜>",
        ),
        close="\n```<｜tool▁call▁end｜>",
        tokens=DEEPSEEK,
        wrap=partial(between, form="<｜tool▁calls▁begin｜>%<｜tool▁calls▁end｜>", by="\n"),
        json_arguments=True,
    ),
    "deepseek_v3_1": Family(
        prefix="<｜Assistant｜></think>",
        end="<｜end▁of▁sentence｜>",
        call=partial(named_call, form="<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>%<｜tool▁call▁end｜>"),
        close="<｜tool▁call▁end｜>",
        tokens=DEEPSEEK,
        wrap=partial(between, form="<｜tool▁calls▁begin｜>%<｜tool▁calls▁end｜>"),
        json_arguments=True,
    ),
    "kimi_k2": Family(
        prefix="<|im_assistant|>assistant<|im_middle|>",
        end="<|im_end|>",
        call=partial(
            named_call, form="<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>%<|tool_call_end|>"
        ),
        close="<|tool_call_end|>",
        tokens=tuple(f"<|{token}|>" for token in (*KIMI, "tool_call_end")),
        wrap=partial(between, form="<|tool_calls_section_begin|>%<|tool_calls_section_end|>"),
        json_arguments=True,
    ),
    "mistral_v11": Family(
        prefix="[/INST]",
        end="</s>",
        call=partial(named_call, form="[TOOL_CALLS]NAME[ARGS]%"),
        close="",
        tokens=("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
        thinking=("[THINK]", "[/THINK]"),
        wrap="".join,
        json_arguments=True,
    ),
    "mistral": Family(
        prefix="[/INST]",
        end="</s>",
        call=partial(json_call, form="%"),
        close="",
        tokens=("[TOOL_CALLS]",),
        thinking=None,
        wrap=partial(bracketed, form="[TOOL_CALLS][%]"),
        json_arguments=True,
    ),
    "lfm2": Family(
        prefix=CHATML,
        end="<|im_end|>",
        call=python_call,
        close="",
        tokens=("<|tool_call_start|>", "<|tool_call_end|>"),
        wrap=partial(bracketed, form="<|tool_call_start|>[%]<|tool_call_end|>"),
    ),
    "granite3": Family(
        prefix="<|start_of_role|>assistant<|end_of_role|>",
        end="<|end_of_text|>",
        call=partial(json_call, form="%"),
        close="",
        tokens=("<|tool_call|>",),
        wrap=partial(bracketed, form="<|tool_call|>[%]"),
        json_arguments=True,
    ),
    "llama3": Family(
        prefix=LLAMA,
        end="<|eot_id|>",
        call=partial(json_call, form="%", key="parameters"),
        close="",
        tokens=("<|python_tag|>",),
        thinking=None,
        wrap="; ".join,
        json_arguments=True,
    ),
    "harmony": Family(
        prefix="<|start|>assistant",
        end="<|call|>",
        call=partial(named_call, form=" to=functions.NAME<|channel|>commentary json<|message|>%"),
        close="",
        tokens=("<|start|>", "<|channel|>", "<|message|>", "<|call|>"),
        thinking=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        wrap="<|call|><|start|>assistant".join,
        message="<|channel|>commentary<|message|>%<|end|><|start|>assistant",
        json_arguments=True,
    ),
    "atem": Family(
        prefix="<|start|>assistant",
        end="<|eot|>",
        call=partial(
            tags_call,
            form=f" to=NAME<|message|><atem:function_calls>\n{INVOKE}\n</atem:function_calls>",
            pair='<atem:parameter name="KEY">VALUE</atem:parameter>\n',
        ),
        close="</atem:invoke>\n</atem:function_calls>",
        tokens=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
        thinking=(" to=self<|message|>", "<|eom|><|start|>assistant"),
        wrap="<|eom|><|start|>assistant".join,
        message=" to=user<|message|>%<|eom|><|start|>assistant",
    ),
    "pythonic": Family(
        prefix=LLAMA,
        end="<|eot_id|>",
        call=python_call,
        close="",
        thinking=None,
        wrap=bracketed,
    ),
}
