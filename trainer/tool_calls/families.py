"""All tool-call formats by name; `docs/families.md` says how to add one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .formats import KnownFormat
from .harmony import HarmonyFormat
from .json_families import JSON_ENTRIES
from .muse_glimmer import AtemFormat
from .react import ReActFormat
from .text_families import TEXT_ENTRIES

# The most particular markers come first: the first format that reads what a template renders is taken.
_ENTRIES: tuple[KnownFormat, ...] = (HarmonyFormat(), AtemFormat(), *TEXT_ENTRIES, *JSON_ENTRIES, ReActFormat())

FORMATS: Mapping[str, KnownFormat] = MappingProxyType({each.name: each for each in _ENTRIES})
