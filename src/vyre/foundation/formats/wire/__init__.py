"""The binary form of a program: write revision 6 (4 and 5 on request), read 4 to 6.

`layout` says what is on the wire, `write` puts it there, `read` takes it off again.
"""

from .read import decode, revision
from .write import encode

__all__ = ["decode", "encode", "revision"]
