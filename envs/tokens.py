"""The tokens of an episode: ids, and the images among them.

- `Tokens`: ids in which an image is a span, which the model was shown and cannot have sampled.
- `TokenTrace`: the tokens of one history of an episode, append-only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from .images import Image


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """The place of an image among ids: all ids that stand for it, separators included."""

    start: int
    length: int
    image: Image

    @property
    def end(self) -> int:
        """The place behind the image."""
        return self.start + self.length

    def moved(self, by: int) -> ImageSpan:
        """Return the span so many places further on."""
        return ImageSpan(self.start + by, self.length, self.image)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Ids, and the images among them. Neither changes: `+` and slices make new tokens.

    Raises:
        ValueError: the spans of the images are empty, overlap, are not in order, or reach beyond the ids.
    """

    ids: list[int]
    images: tuple[ImageSpan, ...] = ()

    def __post_init__(self) -> None:
        before = 0
        for span in self.images:
            if span.start < before or span.length < 1 or span.end > len(self.ids):
                raise ValueError(
                    f"an image cannot stand at {span.start} to {span.end} of {len(self.ids)} ids, behind an image that "
                    f"ends at {before}: spans must not be empty, overlap or reach beyond the ids, and come in order"
                )
            before = span.end

    @property
    def pictures(self) -> list[Image]:
        """The images, in order."""
        return [span.image for span in self.images]

    def __len__(self) -> int:
        return len(self.ids)

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(self.ids + other.ids, self.images + tuple(span.moved(len(self.ids)) for span in other.images))

    def __getitem__(self, part: slice) -> Tokens:
        """Return the tokens of a slice without a step; a ValueError if it would cut an image."""
        start, end, step = part.indices(len(self.ids))
        assert step == 1
        images = [span.moved(-start) for span in self.images if span.start < end and start < span.end]
        return Tokens(self.ids[start:end], tuple(images))

    def up_to(self, most: int) -> Tokens:
        """Return the first tokens, at most so many, without an image that does not fit whole."""
        return self[: next((span.start for span in self.images if span.start < most < span.end), most)]


@dataclass(kw_only=True, slots=True)
class TokenTrace:
    """Exact tokens of an episode. The three lists of the completion have the same length T by construction.

    A completion only ever grows, by tokens that the model sampled or by tokens of an observation. A history that does
    not go on from an earlier one, such as a rewritten one, is the prompt of a new trace.
    """

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)  # (T,) everything after the prompt
    mask: list[int] = field(default_factory=list)  # (T,) 1 where the model sampled the token, 0 elsewhere
    logprobs: list[float] = field(default_factory=list)  # (T,) log-probability when sampled; 0.0 where mask is 0
    drift: int = 0  # tokens on which the engine's record of its input differed from this trace
    # Among `ids`: each in the prompt or in an observation. Written to JSON only where there are some.
    images: Annotated[list[ImageSpan], Field(exclude_if=lambda images: not images)] = field(default_factory=list)

    @classmethod
    def of(cls, prompt: Tokens) -> TokenTrace:
        """Begin a trace with this prompt."""
        return cls(prompt_ids=prompt.ids, images=[*prompt.images])

    def append_sampled(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Append tokens that the model sampled.

        Raises:
            ValueError: the numbers of tokens and log-probabilities differ.
        """
        if len(ids) != len(logprobs):
            raise ValueError(f"got {len(ids)} sampled tokens and {len(logprobs)} log-probabilities")
        self._append(ids, 1, logprobs)

    def append_observation(self, tokens: Tokens) -> None:
        """Append tokens that the environment or the chat template added."""
        self.images += [span.moved(len(self)) for span in tokens.images]
        self._append(tokens.ids, 0, [0.0] * len(tokens))

    def _append(self, ids: Sequence[int], mask: int, logprobs: Sequence[float]) -> None:
        self.completion_ids.extend(ids)
        self.mask.extend([mask] * len(ids))
        self.logprobs.extend(logprobs)

    @property
    def ids(self) -> list[int]:
        """The ids of prompt and completion."""
        return self.prompt_ids + self.completion_ids

    @property
    def tokens(self) -> Tokens:
        """Prompt and completion: the model's input for its next token."""
        return Tokens(self.ids, tuple(self.images))

    @property
    def num_sampled(self) -> int:
        """The number of loss tokens."""
        return sum(self.mask)

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)
