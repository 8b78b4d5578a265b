"""The page of model families says what a picture becomes."""

from __future__ import annotations

from ..chat.test_families import ROOT, generator
from .family_table import image_table


def test_the_table_of_models_that_see_matches_the_code() -> None:
    page = (ROOT / "docs" / "families.md").read_text()
    assert page == generator().with_image_families(page, image_table()), "run: python docs/generate.py"
