"""Why a backend would not open: one text for people, two parts for programs."""

import copy
import pickle
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vyre.driver.contract import BackendRegistration, Unavailable
from vyre.driver.contract.requirement import said
from vyre.driver.selection.listing import BackendListing
from vyre.errors import MOST_LETTERS


def asked(why):
    record = BackendRegistration(id="absent", open=lambda device=None: None, unavailable=lambda: why)
    return BackendListing.of(record).unavailable()


def test_the_text_is_reason_and_fix():
    why = Unavailable("it is off", "turn it on")
    assert why == "it is off: turn it on"
    assert (why.reason, why.fix) == ("it is off", "turn it on")
    assert Unavailable("it is off") == "it is off"


@pytest.mark.parametrize(
    "text, reason, fix",
    [
        ("it is off: turn it on", "it is off", "turn it on"),
        ("failed (OSError: no): install it", "failed (OSError: no)", "install it"),
        ("it is off", "it is off", ""),
        (": turn it on", ": turn it on", ""),
    ],
)
def test_a_plain_text_is_taken_apart_at_its_last_colon(text, reason, fix):
    why = asked(text)
    assert (type(why), why, why.reason, why.fix) == (Unavailable, text, reason, fix)


@given(st.text(min_size=1, max_size=40))
def test_a_plain_text_stays_as_it_is(text):
    assert Unavailable.of(text) == text


def test_the_parts_that_a_backend_gives_are_kept():
    why = Unavailable("off", "set MODE: on")
    assert asked(why) is why
    assert said("x", why, "")[2:] == ("off", "set MODE: on")


def test_it_crosses_process_borders_with_its_parts():
    why = Unavailable("off", "set MODE: on")
    for again in (pickle.loads(pickle.dumps(why)), copy.deepcopy(why)):
        assert (again, again.reason, again.fix) == (why, "off", "set MODE: on")


def test_an_endless_reason_is_shortened():
    assert len(asked(Unavailable("x" * (2 * MOST_LETTERS), "y"))) < 2 * MOST_LETTERS


@pytest.mark.parametrize("id", ["cpu", "cuda", "opencl", "wgpu"])
def test_our_backends_answer_in_two_parts(id, monkeypatch):
    devices = import_module(f"vyre.backends.{id}.devices")
    monkeypatch.setattr(devices, "find_spec", lambda name: None)
    why = devices.unavailable()
    assert type(why) is Unavailable
    assert why.reason.endswith("is not installed")
    assert why.fix.startswith("pip install ")
