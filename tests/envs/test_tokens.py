"""Tokens: ids, and images that are never cut."""

from __future__ import annotations

import pytest

from gymnast.envs.tokens import ImageSpan, Tokens, TokenTrace

from .pictures import picture

CAT, DOG = picture(1), picture(2)
TOKENS = Tokens([1, 20, 20, 2, 21, 3], (ImageSpan(1, 2, CAT), ImageSpan(4, 1, DOG)))


def test_concatenation_moves_the_images() -> None:
    both = TOKENS + Tokens([9]) + TOKENS
    assert both.ids == [1, 20, 20, 2, 21, 3, 9, 1, 20, 20, 2, 21, 3]
    assert both.images == (*TOKENS.images, ImageSpan(8, 2, CAT), ImageSpan(11, 1, DOG))
    assert both[7:] == TOKENS
    assert Tokens([]) + TOKENS == TOKENS


def test_a_slice_holds_its_images_whole_or_is_refused() -> None:
    assert TOKENS[1:3] == Tokens([20, 20], (ImageSpan(0, 2, CAT),))
    assert TOKENS[3:] == Tokens([2, 21, 3], (ImageSpan(1, 1, DOG),))
    assert TOKENS[:1] == Tokens([1])
    for cut in (slice(2), slice(2, None), slice(2, 2)):
        with pytest.raises(ValueError, match="an image cannot stand at"):
            _ = TOKENS[cut]


def test_up_to_leaves_an_image_out_that_does_not_fit() -> None:
    assert [len(TOKENS.up_to(most)) for most in range(8)] == [0, 1, 1, 3, 4, 5, 6, 6]


@pytest.mark.parametrize("span", [(-1, 2), (5, 2), (3, 0), (2, 2)], ids=["before", "beyond", "empty", "overlapping"])
def test_a_span_that_does_not_fit_is_refused(span: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"an image cannot stand at {span[0]} to {sum(span)} of 6 ids"):
        Tokens(TOKENS.ids, (ImageSpan(1, 2, CAT), ImageSpan(*span, DOG)))


def test_a_trace_knows_the_places_of_its_images() -> None:
    trace = TokenTrace.of(TOKENS)
    trace.append_sampled([7, 8], [-1.0, -2.0])
    trace.append_observation(TOKENS)
    assert trace.tokens == TOKENS + Tokens([7, 8]) + TOKENS
    assert trace.mask == [1, 1, 0, 0, 0, 0, 0, 0]
