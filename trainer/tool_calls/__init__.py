"""Text of a model to a message with tool calls: pure functions of text, no tokenizer; start reading at `formats.py`.

For a `TextFormat` of your own, `tagged` takes any of the readers that are exported here.
"""

from .payload_readers import (
    Reader,
    Reading,
    brace_call,
    json_or,
    json_payload,
    named_json,
    python_calls,
    python_lines,
    python_tag_call,
)
from .spans import Span, Spans, tagged
from .text_arguments import argument_pairs, argument_pairs_call, xml_call, xml_parameters

__all__ = [
    "Reader",
    "Reading",
    "Span",
    "Spans",
    "argument_pairs",
    "argument_pairs_call",
    "brace_call",
    "json_or",
    "json_payload",
    "named_json",
    "python_calls",
    "python_lines",
    "python_tag_call",
    "tagged",
    "xml_call",
    "xml_parameters",
]
