"""TokenTexts: the texts of the tokens in recorded episodes, so that a reader needs no tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...envs.episode import Episode


class TokenTexts:
    """Gives the text of each token id once; `decode` returns it."""

    def __init__(self, decode: Callable[[int], str]) -> None:
        self._decode = decode
        self._known: set[int] = set()

    def new(self, episodes: Iterable[Episode]) -> dict[int, str]:
        """Return the texts of the ids in these episodes that were not given before."""
        ids = {token for episode in episodes for trace in episode.traces for token in trace.ids} - self._known
        self._known |= ids
        return {token: self._decode(token) for token in sorted(ids)}
