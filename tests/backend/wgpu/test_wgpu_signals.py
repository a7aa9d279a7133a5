"""Ctrl-C while the library calls back waits until what it had to tell was told."""

import signal

import pytest

pytest.importorskip("wgpu")

from vyre.backends.wgpu.run import binding_gaps


def test_an_interrupt_inside_a_callback_comes_after_it():
    told = []

    class Device:
        def _poll(self, block):
            signal.raise_signal(signal.SIGINT)
            told.append(block)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        binding_gaps.poll(Device())
    assert told == [False]
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_handler_that_ignores_it_stays(monkeypatch):
    polled = []

    class Device:
        def _poll(self, block):
            polled.append(signal.getsignal(signal.SIGINT))

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        binding_gaps.poll(Device())
    finally:
        signal.signal(signal.SIGINT, before)
    assert polled == [signal.SIG_IGN]
