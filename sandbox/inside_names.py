"""The names of a box without a network: `localhost`, and its own.

An engine writes `/etc/hosts` while it sets up a network, and `container.py` has it set up none, which takes long. Where
neither that file nor `/etc/resolv.conf` says anything, a C library asks 127.0.0.1 (resolv.conf(5)), and so it is
answered there, with messages of RFC 1035. Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import _socket  # pyright: ignore[reportMissingImports] # a module of CPython; `socket` takes several times as long to load
import os
import struct

_PORT = 53
_LARGEST = 512  # bytes of a message over UDP
_HEADER = struct.Struct(">6H")  # id, flags, and the numbers of questions, answers, authorities and additions
_IS_ANSWER, _RECURSION = 0x8400, 0x0100  # flags: an answer by who decides; a bit that is repeated from the question
_NO_SUCH_NAME = 3
_A, _PTR, _INTERNET = 1, 12, 1  # kinds of answers, and the class of all networks that are left
_SECONDS = 3600  # that an answer holds


class Names:
    """Answers the questions of the code for names, one at a time.

    Raises:
        OSError: this port cannot be had, so that no name is known in the box.
    """

    def __init__(self) -> None:
        self._socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(("127.0.0.1", _PORT))
        own = os.uname().nodename.encode("ascii", "replace").lower()
        self._known = {
            _encoded(b"localhost"): {_A: bytes([127, 0, 0, 1])},  # not ::1, as not every client tries both
            _encoded(own): {_A: bytes([127, 0, 0, 1])},
            _encoded(b"1.0.0.127.in-addr.arpa"): {_PTR: _encoded(b"localhost")},
        }

    def fileno(self) -> int:
        return self._socket.fileno()

    def answer(self) -> None:
        """Answer a question that has arrived; what is none is passed over."""
        try:
            question, sender = self._socket.recvfrom(_LARGEST)
            self._socket.sendto(self._answer_to(question), sender)
        except (OSError, ValueError, struct.error):
            pass  # whoever sent it has gone, or it was no question

    def _answer_to(self, message: bytes) -> bytes:
        number, flags, questions, *_ = _HEADER.unpack_from(message)
        end = message.index(0, _HEADER.size) + 1
        kind, network = struct.unpack_from(">HH", message, end)
        if questions != 1 or flags & 0x8000 or network != _INTERNET:
            raise ValueError("no question for an address")
        known = self._known.get(message[_HEADER.size : end].lower())
        found = known.get(kind) if known is not None else None
        flags = _IS_ANSWER | flags & _RECURSION | (_NO_SUCH_NAME if known is None else 0)
        answer = _HEADER.pack(number, flags, 1, 0 if found is None else 1, 0, 0) + message[_HEADER.size : end + 4]
        if found is not None:
            answer += struct.pack(">HHHIH", 0xC000 | _HEADER.size, kind, network, _SECONDS, len(found)) + found
        return answer


def _encoded(name: bytes) -> bytes:
    """A name as messages hold it: its parts, each after its length, and an empty one."""
    return b"".join(bytes([len(part)]) + part for part in [*name.split(b"."), b""])
