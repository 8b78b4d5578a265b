"""Text of a model to a message with tool calls: pure functions of text, no tokenizer; start reading at `formats.py`.

For a `TextFormat` of your own, `tagged` takes any of the readers that are exported here.
"""

from .payload_readers import Reader, brace_call, json_or, json_payload, named_json, python_calls
from .spans import Span
from .text_arguments import argument_pairs_call, xml_call

__all__ = [
    "Reader",
    "Span",
    "argument_pairs_call",
    "brace_call",
    "json_or",
    "json_payload",
    "named_json",
    "python_calls",
    "xml_call",
]
