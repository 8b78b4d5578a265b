"""Objects in braces whose keys need no quotes, and whose strings stand between two marks: Gemma's way."""

from __future__ import annotations

import re
from functools import cache

from .value_readers import Found, Literals, next_end, refuse_halves, shorten, skip_space


class BraceLiterals(Literals):
    """`{key:value}` with keys that need no quotes; strings stand between two marks, without escapes."""

    quote = ""

    def value(self, start: int) -> Found:
        if self.text.startswith(self.quote, start):
            return self._string(start, r"\s*[,}\]]")
        opening = self.text[start : start + 1]
        if opening == "{":
            return self.object(start + 1)
        if opening == "[":
            return self.items(start + 1, "list]", self.value)
        if match := _BARE.match(self.text, start):
            refuse_halves(self.text, start, match.end())
            return match[0].rstrip(), match.end()
        return self.plain(start)

    def object(self, start: int) -> Found:
        """An object whose opening brace stands before `start`."""
        found, end = self.items(start, "object}", self._member)
        return dict(found), end

    def _member(self, start: int) -> Found:
        if self.text.startswith(self.quote, start):
            key, position = self._string(start, r"\s*:")
        elif match := _KEY.match(self.text, start):
            key, position = match[0].strip(), match.end()
            refuse_halves(self.text, start, position)
        else:
            raise self.error(start, "a key and ':'")
        value, end = self.value(skip_space(self.text, skip_space(self.text, position) + 1))
        return (key, value), end

    def _string(self, start: int, follow: str) -> Found:
        first = start + len(self.quote)
        end = next_end(self.text, _mark_end(self.quote, follow), first + len(self.quote))
        if end is None:
            raise ValueError(f"the text that begins with {shorten(self.text[start : start + 30])} does not end")
        refuse_halves(self.text, first, end)
        return (self.text[first : end - len(self.quote)] if self._making else ""), end


# A string whose marks are missing. Words for other values (`null`, `NaN`) are not strings.
_BARE = re.compile(r"(?!(?i:true|false|null|none|nan|inf|infinity)\b)[^\W\d_][^:,{}\[\]<>\n]{0,255}+(?=[,}\]])")
_KEY = re.compile(r"[^:,{}\[\]<>\n]{1,256}(?=:)")


@cache
def _mark_end(quote: str, follow: str) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(quote)}(?={follow})")


@cache
def brace_literals(quote: str) -> type[BraceLiterals]:
    """The reader for one mark around strings."""
    return type("BraceLiterals", (BraceLiterals,), {"quote": quote})
