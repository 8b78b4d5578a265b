"""Who is right where parsers read the same text otherwise, and why: written by hand, for each kind of difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Right = Literal["gymnast", "they", "either", "nobody"]


@dataclass(kw_only=True, slots=True, frozen=True)
class Judgement:
    """Of the differences in some cases.

    Attributes:
        key: Names it in the tables.
        cases: The cases.
        how: What they do there; empty: whatever it is.
        peers: The parsers, or with a side's name all of it; empty: all.
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
        why="vLLM keeps the text before the first call only; here all of it is in the record",
    ),
    Judgement(
        key="A2",
        cases=("text before", "an answer that is no call"),
        how=(DROPS_TEXT,),
        peers=("gptoss_template",),
        right="gymnast",
        why="a preamble on the commentary channel, and an answer without any channel, are what the model said",
    ),
    Judgement(
        key="A3",
        cases=(*TEXT, "two calls"),
        how=(RAISES, FEWER),
        right="gymnast",
        why="a whole call is one, whatever follows it",
    ),
    Judgement(
        key="A4",
        cases=("text before", "text between"),
        how=(MORE,),
        peers=("llama3_template", "llama3_json"),
        right="either",
        why="JSON behind text may be an example, too; here a call begins the answer, or follows `<|python_tag|>`",
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
        why="what stands within a quoted string is text, markers too",
    ),
    Judgement(
        key="B2",
        cases=MARKERS,
        peers=(*UNESCAPED, "qwen3_5_template", "glm4moe_template"),
        right="gymnast",
        why="the format cannot escape its markers, so nobody can tell what was meant; they run a call that was not",
    ),
    Judgement(
        key="B3",
        cases=MARKERS,
        peers=("muse_glimmer",),
        right="gymnast",
        why="the format cannot escape its markers, and such a call is refused",
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
        why="gymnast keeps the number that was written; `ToolEnv` takes it for text then",
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
        why="they lose every argument that is no string",
    ),
    Judgement(
        key="D1",
        cases=CUT,
        how=(AS_TEXT, DROPS_CALL),
        right="gymnast",
        why='the model is told that its call was cut; with `tool_format="vllm:..."` gymnast tells it, too',
    ),
    Judgement(
        key="D2",
        cases=CUT,
        how=(MORE,),
        right="gymnast",
        why="they run a call of whose arguments some are missing, or give broken JSON",
    ),
    Judgement(
        key="D3",
        cases=UNCLOSED,
        how=(RAISES, FEWER, OTHER_TEXT),
        right="gymnast",
        why="the arguments are whole, so the call is read, and nothing of it is left as text",
    ),
    Judgement(
        key="D4",
        cases=UNCLOSED,
        how=(MORE, DROPS_CALL),
        right="gymnast",
        why="only the end would tell that no argument is missing, so the call is malformed",
    ),
    Judgement(
        key="D5",
        cases=UNOPENED,
        how=(FEWER,),
        right="gymnast",
        why="only the marker around all calls is missing; each call is whole",
    ),
    Judgement(
        key="D6",
        cases=UNOPENED,
        how=(DROPS_TEXT,),
        peers=("gemma4",),
        right="either",
        why="both take the call for text; vLLM leaves the closing marker out of it",
    ),
    Judgement(
        key="E1",
        cases=BAD,
        how=(RAISES, FEWER, AS_TEXT),
        peers=("qwen3_template", "llama3_template", "gptoss_template", "hermes", "granite4", "mistral", "llama3_json"),
        right="gymnast",
        why="one bad call does not undo the good ones, and is told",
    ),
    Judgement(
        key="E2",
        cases=BAD,
        how=(MORE,),
        peers=("deepseek_v3", "deepseek_v31", "kimi_k2", "mistral", "muse_glimmer"),
        right="gymnast",
        why="they give the bad call with broken JSON, or without its arguments",
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
        why="the bad call is told, and the good ones are read; they drop it, run it with what is left, or read nothing",
    ),
    Judgement(
        key="E4",
        cases=BAD,
        peers=("lfm2", "pythonic"),
        right="gymnast",
        why="a broken list of calls is told; they take it for text",
    ),
    Judgement(
        key="E5",
        cases=BAD,
        peers=("granite", "lfm2_2_5_template"),
        right="either",
        why="all calls are one broken list; they guess at the good ones, gymnast asks for all again",
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
        why="a call whose arguments stand elsewhere is told as broken; they run it without any, or take it for text",
    ),
)


def judgements_of(side: str, peer: str, case: str, how: str) -> list[Judgement]:
    """Those that cover a difference; there must be one."""
    return [each for each in JUDGEMENTS if each.covers(side, peer, case, how)]
