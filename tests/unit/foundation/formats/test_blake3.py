"""The digest without the package is the digest of the package."""

import builtins
import importlib

import pytest

import vyre.foundation.formats.blake3 as module
from vyre.foundation.formats.blake3 import pure_blake3

wheel = pytest.importorskip("blake3").blake3

# Around the block (64), the chunk (1024), and trees of two to a hundred chunks, full and ragged.
LENGTHS = [0, 1, 2, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2047, 2048, 2049, 3071, 3072, 3073, 4096, 4097, 5120]
LENGTHS += [6144, 7168, 8192, 8193, 16384, 31744, 102400]


@pytest.mark.parametrize("length", LENGTHS)
def test_pure_digest_equals_the_wheel_at_every_edge_of_blocks_and_trees(length):
    data = bytes(i % 251 for i in range(length))
    assert pure_blake3(data) == wheel(data).digest()


def test_pure_digest_of_nothing_and_of_abc_are_the_published_ones():
    assert pure_blake3(b"").hex() == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    assert pure_blake3(b"abc").hex() == "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"


def test_the_wheel_is_used_where_it_is_installed():
    assert module.blake3 is not pure_blake3
    assert module.blake3(b"x" * 3000) == pure_blake3(b"x" * 3000)


def test_without_the_wheel_the_fallback_takes_over(monkeypatch):
    real_import = builtins.__import__

    def no_wheel(name, globals=None, locals=None, fromlist=(), level=0):
        if name == "blake3" and level == 0:
            raise ImportError(name)
        return real_import(name, globals, locals, fromlist, level)

    monkeypatch.setattr(builtins, "__import__", no_wheel)
    assert module._choose() is module.pure_blake3
    monkeypatch.undo()
    assert importlib.import_module("blake3")
