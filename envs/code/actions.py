"""Actions that are blocks of code in the model's text, as smolagents' `CodeAgent` writes them: fences or tags."""

from __future__ import annotations

import re
from typing import Literal

Language = Literal["python", "bash"]

_TAGS = r"<code>\n?(?P<tagged>.*?)(?:</code>|\Z)"
_FENCES = r"```(?P<mark>\w*)[^\n]*\n(?P<fenced>.*?)(?:^```|\Z)"
_BLOCKS = re.compile(f"^(?:{_TAGS}|{_FENCES})", re.DOTALL | re.MULTILINE)  # a block within another one is its text
_LANGUAGES: dict[str, Language] = {"python": "python", "py": "python", "bash": "bash", "sh": "bash", "shell": "bash"}


def code_of(text: str, language: Language) -> tuple[Language, str] | None:
    """Return the code of a text and its language, or None if it has none; `language` is that of unmarked blocks.

    The blocks of the first block's language are one program. A model may stop before it closes the last block.
    """
    marked: dict[str, Language] = {**_LANGUAGES, "": language}
    found = [(match["mark"] or "", match["fenced"] or match["tagged"] or "") for match in _BLOCKS.finditer(text)]
    blocks: list[tuple[Language, str]] = [(marked[mark], block) for mark, block in found if mark in marked]
    if not blocks:
        return None
    first = blocks[0][0]
    return first, "\n\n".join(block.rstrip("\n") for mark, block in blocks if mark == first)
