"""Which parser is right where two read a text differently, and why. Written by hand for each kind of difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Right = Literal["gymnast", "they", "either", "nobody"]


@dataclass(kw_only=True, slots=True, frozen=True)
class Judgement:
    """A verdict on the differences in some cases.

    Attributes:
        key: Its name in the tables.
        cases: The cases that it covers.
        how: The peers' behaviour that it covers; empty: any.
        peers: The parsers that it covers, or `transformers` or `vllm` for all of that side; empty: all.
    """

    key: str
    cases: tuple[str, ...]
    how: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    right: Right
    why: str

    def covers(self, side: str, peer: str, case: str, how: str) -> bool:
        name = peer.partition(" / ")[0]
        by_peer = not self.peers or side in self.peers or name in self.peers or peer in self.peers
        return by_peer and case in self.cases and (not self.how or how in self.how)


RAISES, FEWER, MORE = "raises, and reads nothing", "reads fewer calls", "reads more calls"
ARGUMENTS, DROPS_TEXT, OTHER_TEXT = "reads other arguments", "drops text", "reads other text"
AS_TEXT, DROPS_CALL = "takes a broken call for text", "drops a broken call"

TEXT = ("text after", "text between")
CUT, UNCLOSED, BAD = ("cut within the arguments",), ("no closing marker",), ("a bad call between good ones",)
UNOPENED = ("no opening marker",)
MARKERS, JSON_TEXT = ("a call within a string",), ("arguments as JSON text",)
UNESCAPED = ("qwen3_coder", "seed_oss", "minimax_m2", "glm45", "gemma4", "functiongemma")  # vLLM's

JUDGEMENTS: tuple[Judgement, ...] = (
    Judgement(
        key="A1",
        cases=TEXT,
        how=(DROPS_TEXT,),
        peers=("vllm",),
        right="gymnast",
        why="vLLM keeps only the text before the first call; gymnast keeps all of it",
    ),
    Judgement(
        key="A2",
        cases=("text before", "an answer that is no call"),
        how=(DROPS_TEXT,),
        peers=("gptoss_template",),
        right="gymnast",
        why="a preamble on the commentary channel and an answer without a channel are text of the model",
    ),
    Judgement(
        key="A3",
        cases=(*TEXT, "two calls"),
        how=(RAISES, FEWER),
        right="gymnast",
        why="a complete call counts, whatever follows it",
    ),
    Judgement(
        key="A4",
        cases=("text before", "text between"),
        how=(MORE,),
        peers=("llama3_template", "llama3_json"),
        right="either",
        why="JSON after text may be an example; in gymnast a call begins the answer, or follows `<|python_tag|>`",
    ),
    Judgement(
        key="B1",
        cases=MARKERS,
        peers=(
            "qwen3_template",
            "lfm2_2_5_template",
            "hermes",
            "granite4",
            "deepseek_v31",
            "kimi_k2",
            "mistral",
            "lfm2",
        ),
        right="gymnast",
        why="everything within a quoted string is text, markers too",
    ),
    Judgement(
        key="B2",
        cases=MARKERS,
        peers=(*UNESCAPED, "qwen3_5_template", "glm4moe_template"),
        right="gymnast",
        why="the format cannot escape its markers, so the text is ambiguous; they run a call that was not meant",
    ),
    Judgement(
        key="B3",
        cases=MARKERS,
        peers=("muse_glimmer",),
        right="gymnast",
        why="the format cannot escape its markers, so gymnast refuses such a call",
    ),
    Judgement(
        key="C1",
        cases=("a string for a number",),
        right="gymnast",
        why='the schema wants an integer, and `"3"` is one',
    ),
    Judgement(
        key="C2",
        cases=("a number for a string",),
        peers=("kimi_k2", "mistral", "granite", "gemma4"),
        right="either",
        why="gymnast keeps the number that was written; `ToolEnv` then converts it to text",
    ),
    Judgement(
        key="C3",
        cases=("a number for a string",),
        peers=("muse_glimmer",),
        right="gymnast",
        why="all values of the format are text, and the schema wants text",
    ),
    Judgement(
        key="C4",
        cases=JSON_TEXT,
        how=(ARGUMENTS,),
        right="gymnast",
        why="they give the arguments as one string, which no tool takes",
    ),
    Judgement(
        key="C5",
        cases=("nested arguments",),
        peers=("gemma4", "lfm2_2_5_template"),
        right="gymnast",
        why="they turn nested numbers, truth values and whole objects into text",
    ),
    Judgement(
        key="C6",
        cases=("quotes and unicode",),
        peers=("lfm2_2_5_template",),
        right="gymnast",
        why="they leave the escapes of a string as they are",
    ),
    Judgement(
        key="C7",
        cases=(
            "one call",
            "two calls",
            "text before",
            *TEXT,
            "nested arguments",
            "quotes and unicode",
            "a number for a string",
            *UNCLOSED,
        ),
        how=(ARGUMENTS,),
        peers=("functiongemma",),
        right="gymnast",
        why="they lose every argument that is not a string",
    ),
    Judgement(
        key="D1",
        cases=CUT,
        how=(AS_TEXT, DROPS_CALL),
        right="gymnast",
        why='gymnast tells the model that its call was cut, with `tool_format="vllm:..."` too',
    ),
    Judgement(
        key="D2",
        cases=CUT,
        how=(MORE,),
        right="gymnast",
        why="they run a call that lacks some arguments, or return broken JSON",
    ),
    Judgement(
        key="D3",
        cases=UNCLOSED,
        how=(RAISES, FEWER, OTHER_TEXT),
        right="gymnast",
        why="the arguments are complete, so gymnast reads the call and leaves no part of it as text",
    ),
    Judgement(
        key="D4",
        cases=UNCLOSED,
        how=(MORE, DROPS_CALL),
        right="gymnast",
        why="without the end, arguments may be missing, so the call is malformed",
    ),
    Judgement(
        key="D5",
        cases=UNOPENED,
        how=(FEWER,),
        right="gymnast",
        why="only the marker around all calls is missing; each call is complete",
    ),
    Judgement(
        key="D6",
        cases=UNOPENED,
        how=(DROPS_TEXT,),
        peers=("gemma4",),
        right="either",
        why="both treat the call as text; vLLM drops the closing marker",
    ),
    Judgement(
        key="E1",
        cases=BAD,
        how=(RAISES, FEWER, AS_TEXT),
        peers=("qwen3_template", "llama3_template", "gptoss_template", "hermes", "granite4", "mistral", "llama3_json"),
        right="gymnast",
        why="one bad call does not undo the good ones; gymnast reports it to the model",
    ),
    Judgement(
        key="E2",
        cases=BAD,
        how=(MORE,),
        peers=("deepseek_v3", "deepseek_v31", "kimi_k2", "mistral", "muse_glimmer"),
        right="gymnast",
        why="they return the bad call with broken JSON, or without its arguments",
    ),
    Judgement(
        key="E3",
        cases=BAD,
        peers=(
            "qwen3_5_template",
            "glm4moe_template",
            "gemma4_template",
            *UNESCAPED,
        ),
        right="gymnast",
        why="gymnast reports the bad call and reads the good ones; they drop it, run a part of it, or read nothing",
    ),
    Judgement(
        key="E4",
        cases=BAD,
        peers=("lfm2", "pythonic"),
        right="gymnast",
        why="gymnast reports a broken list of calls; they treat it as text",
    ),
    Judgement(
        key="E5",
        cases=BAD,
        peers=("granite", "lfm2_2_5_template"),
        right="either",
        why="all calls are one broken list; they guess the good ones, gymnast asks for all of them again",
    ),
    Judgement(
        key="F1",
        cases=("an unknown tool",),
        right="gymnast",
        why="the call is kept, so that the environment can tell the model which tools there are",
    ),
    Judgement(
        key="F2",
        cases=("arguments under a wrong key",),
        right="gymnast",
        why="gymnast reports a call with misplaced arguments as broken; they run it without any, or treat it as text",
    ),
)


def judgements_of(side: str, peer: str, case: str, how: str) -> list[Judgement]:
    """The judgements that cover a difference; there must be exactly one."""
    return [judgement for judgement in JUDGEMENTS if judgement.covers(side, peer, case, how)]
