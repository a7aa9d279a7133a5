"""A plugin whose record is nonsense, in any field and in any way, harms nobody else."""

import itertools
import json
from dataclasses import fields, replace

import numpy as np
import pytest

import vyre
from vyre import In, Out, gid, u32
from vyre.cli.app import main
from vyre.cli.commands import backends, config, devices
from vyre.driver.contract import BackendRegistration, DeviceInfo, VyreBackend
from vyre.driver.selection import registry
from vyre.driver.selection.listing import BackendListing
from vyre.driver.settings import knobs as settings
from vyre.errors import ArgumentTypeError, ArgumentValueError, BackendUnavailable, VyreError, shown

from ..settings.test_settings import backend as stub


@vyre.kernel(workgroup=64)
def double(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * 2


class Leaves(BaseException):
    def __str__(self):
        raise RuntimeError("no words")


class Mute:
    """Nothing can be asked of it."""

    def __repr__(self):
        raise Leaves

    def __eq__(self, other):
        raise ValueError("neither equal nor different")

    __hash__ = None


class Text(str):
    __slots__ = ()

    def __str__(self):
        raise RuntimeError("no words")


def raising(error):
    def go(*args, **options):
        raise error

    return go


JUNK = {
    "None": None,
    "number": 5,
    "long": 10**5000,
    "nan": float("nan"),
    "text": "x",
    "huge": "x" * 5_000_000,
    "bytes": b"\xff",
    "list": [],
    "dict": {1: 2},
    "object": object(),
    "mute": Mute(),
    "array": np.zeros(3),
    "type": int,
    "raises": raising(RuntimeError("upside down")),
    "exits": raising(SystemExit(3)),
    "leaves": raising(Leaves()),
    "deep": raising(RecursionError()),
    "answers None": lambda *args: None,
    "answers number": lambda *args: 5,
    "answers long": lambda *args: 10**5000,
    "answers text": lambda *args: "x",
    "answers huge": lambda *args: "x" * 5_000_000,
    "answers odd text": lambda *args: Text("because"),
    "answers mute": lambda *args: Mute(),
    "answers array": lambda *args: np.zeros(3),
    "answers no end": lambda *args: itertools.count(),
    "answers mutes": lambda *args: [Mute(), Mute()],
    "answers odd devices": lambda *args: [DeviceInfo(10**5000, "x"), DeviceInfo(0, 5), DeviceInfo(-1, "x", None)],
    "answers odd knobs": (settings.Knob("bad_x", None, default=Mute(), meaning=5, read=None, without=[]),),
}


def bad(field, junk):
    sound = BackendRegistration(id="bad", open=lambda device=None: Odd(None, None), precedence=1, kind="device")
    return sound if field is None else replace(sound, **{field: junk})


@pytest.fixture(autouse=True)
def own_place(monkeypatch, tmp_path):
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(settings, "_told", {})


def among(record):
    """A registry with one good backend, and one whose name is sound and whose record is this."""
    inside = registry.isolated()
    inside.__enter__()
    listings = [BackendListing("bad", 1, lambda: record), BackendListing.of(stub("g"))]
    registry._current._table = registry._Registry(lambda _: listings).table()
    return inside


def works():
    """Everything that looks at all backends."""
    x = np.arange(4, dtype=np.uint32)
    chosen = vyre.select(double.program)
    assert chosen.chosen in ("g", "bad")
    assert str(chosen)
    assert len(double(x)) == 4
    assert vyre.acquire("g").id == "g"
    assert settings.all_knobs()
    settings.find_knob("bad_x")
    for ask in (lambda: vyre.acquire("bad"), lambda: vyre.devices("bad"), lambda: vyre.acquire("bad:0")):
        said = refusal(ask)
        assert said is None or ("Fix: " in said and len(said) < 10_000)


def refusal(ask):
    try:
        ask()
    except VyreError as e:
        return str(e)
    return None


def listed(capsys):
    """What the commands that list all backends show."""
    capsys.readouterr()
    for command, words in ((backends, ()), (devices, (None,))):
        document = command.collect(*words)
        assert "g" in json.dumps(document)
        command.show(document)
    assert config.collect()["settings"]
    out, err = capsys.readouterr()
    assert len(out) < 100_000, "a text of any length is cut"
    assert "Traceback" not in err
    return out


@pytest.mark.parametrize("field", [f.name for f in fields(BackendRegistration)])
def test_a_field_that_is_nonsense_harms_nobody_else(field, capsys):
    for junk in JUNK.values():
        inside = among(bad(field, junk))
        try:
            works()
            assert "g" in listed(capsys)
        finally:
            inside.__exit__(None, None, None)


@pytest.mark.parametrize(
    "words", [["backends"], ["devices", "--json"], ["config", "show"], ["caps", "g"], ["caps", "bad"]], ids=" ".join
)
def test_a_command_says_so_and_ends_as_it_should(words, capsys):
    for field, junk in (("unavailable", "mute"), ("devices", "answers no end"), ("open", "leaves"), ("knobs", "mute")):
        inside = among(bad(field, JUNK[junk]))
        try:
            assert main(words) == (1 if "bad" in words and field != "devices" else 0), (words, field)
            assert "Traceback" not in capsys.readouterr().err
        finally:
            inside.__exit__(None, None, None)


@pytest.mark.parametrize("record", [v for k, v in JUNK.items() if k != "huge"], ids=[k for k in JUNK if k != "huge"])
def test_a_record_that_is_nonsense_harms_nobody_else(record, capsys):
    inside = among(record)
    try:
        works()
        assert "disabled" in listed(capsys)
    finally:
        inside.__exit__(None, None, None)


@pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit(), Leaves(), RecursionError(), GeneratorExit()])
def test_a_record_that_fails_to_load_harms_nobody_else(error, capsys):
    listings = [BackendListing("bad", 1, raising(error)), BackendListing.of(stub("g"))]
    with registry.isolated():
        registry._current._table = registry._Registry(lambda _: listings).table()
        works()
        assert f"loading its record failed: {type(error).__name__}" in listed(capsys)


def test_ctrl_c_is_no_failure_of_a_backend():
    for field in ("unavailable", "devices", "open", "probe_key"):
        inside = among(bad(field, raising(KeyboardInterrupt())))
        try:
            with pytest.raises(KeyboardInterrupt):
                vyre.select(double.program)
        finally:
            inside.__exit__(None, None, None)


class Odd(VyreBackend, contract=1):
    """Opens, and answers with nonsense."""

    id = "bad"
    version = "1"

    def __init__(self, member, junk):
        self.member, self.junk = member, junk

    def __getattribute__(self, name):
        get = object.__getattribute__
        if name not in ("member", "junk") and name == get(self, "member"):
            junk = get(self, "junk")
            return junk() if getattr(junk, "__name__", "") == "go" else junk
        return get(self, name)

    capability = stub("b").open().capability

    def dispatch(self, program, inputs, config=None, *, out=None):
        return [bytearray(16)]


MEMBERS = ("capability", "id", "supported_ops", "__dict__")


@pytest.mark.parametrize("member", MEMBERS)
def test_a_backend_that_answers_with_nonsense_is_not_chosen_and_ends_nothing(member, capsys):
    for junk in (value for name, value in JUNK.items() if name != "answers no end"):
        inside = among(bad("open", lambda device=None, junk=junk: Odd(member, junk)))
        try:
            works()
            listed(capsys)
        finally:
            inside.__exit__(None, None, None)


def test_what_no_id_is_is_refused():
    for ask in (vyre.devices, registry.backend_precedence, registry.backend_dispatches, registry.backend_registration):
        for junk in ([], None, 5, 10**5000, Mute()):
            with pytest.raises(ArgumentTypeError, match=r"is not the id of a backend\. Fix: pass its id"):
                ask(junk)
    with pytest.raises(BackendUnavailable, match="has no device"), registry.isolated(stub("g")):
        vyre.acquire("g:" + "9" * 5000)
    with pytest.raises(ArgumentValueError, match=r"the precedence of backend x has more than 32 bits\. Fix: pass one"):
        registry.register(BackendRegistration(id="x", open=stub("g").open, precedence=10**5000))


def test_any_value_can_be_shown():
    assert shown([1, "a"]) == "[1, 'a']"
    assert shown(10**5000) == "(a number of 16610 bits)"
    assert shown("x" * 10_000).endswith("... (10002 letters)")
    assert shown(Text("x")) == "'x'"
    assert shown(Text("x"), str) == "(a Text)"
