"""The registry: listing by name alone, one broken id harms nobody else, and a choice that gives its reasons."""

import pickle
import threading
import time
import warnings

import pytest

from vyre.driver.contract import PRECEDENCE_UNKNOWN, BackendCapability, BackendRegistration, DeviceInfo, VyreBackend
from vyre.driver.selection import registry
from vyre.driver.selection.listing import LOOK_EVERY_S
from vyre.driver.selection.probe import Probe
from vyre.driver.selection.registry import (
    BackendListing,
    FallbackWarning,
    acquire,
    acquire_preferred_dispatch_backend,
    backend_dispatches,
    backend_precedence,
    backend_registration,
    devices,
    fallback_counts,
    generation,
    isolated,
    preferred,
    probed,
    problems,
    refresh,
    register,
    registered_backends,
    registered_backends_by_precedence,
    select,
)
from vyre.driver.settings.folders import cache_dir
from vyre.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    BackendError,
    BackendUnavailable,
    InvalidProgram,
    UnsupportedFeature,
)
from vyre.foundation.ir.dtypes import u32
from vyre.foundation.ir.nodes import Store, Trap, lit
from vyre.foundation.ir.program import Program, output

REAL = (DeviceInfo(0, "Fast Board 4090"), DeviceInfo(1, "Fast Board 3060"), DeviceInfo(2, "Slow Board"))
SOFT = (DeviceInfo(0, "soft raster", emulated=True),)
PLAIN = Program((output("o", 0, u32, 1),), (1, 1, 1), (Store("o", lit(0), lit(7)),))
TRAPS = Program((), (1, 1, 1), (Trap(lit(0), "always"),))


class Fake(VyreBackend, contract=1):
    id = "fake"

    def __init__(self, id, device=None, capability=BackendCapability()):  # noqa: B008 - frozen
        self.id, self.device, self.capability = id, device, capability
        self.closed = 0

    def dispatch(self, program, inputs, config=None, *, out=None):
        return []

    def shutdown(self):
        self.closed += 1


def record(id, precedence=500, *, opened=None, ops=None, **fields):
    """A registration; every backend it opens is appended to `opened`."""
    opened = [] if opened is None else opened
    capability = BackendCapability(ops=ops)

    def open_backend(device=None):
        opened.append(Fake(id, device, capability))
        return opened[-1]

    return BackendRegistration(id=id, precedence=precedence, **({"open": open_backend} | fields))


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch, tmp_path):
    monkeypatch.delenv("VYRE_BACKEND", raising=False)
    monkeypatch.delenv("VYRE_STRICT", raising=False)
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path / "cache"))


def broken():
    raise RuntimeError("the driver is upside down")


# -- listing ----------------------------------------------------------------------------------------------------------


def test_the_installed_reference_is_listed_with_the_precedence_of_its_name():
    assert [b.precedence for b in registered_backends() if b.id == "reference"] == [900]
    assert backend_registration("reference").kind == "oracle"


def test_listings_are_sorted_by_id_and_by_precedence_then_id():
    with isolated(record("b", 5), record("c", 1), record("a", 5)):
        assert [b.id for b in registered_backends()] == ["a", "b", "c"]
        assert [b.id for b in registered_backends_by_precedence()] == ["c", "a", "b"]
        assert [repr(b) for b in registered_backends()] == [
            f"BackendListing('{id}', {n})" for id, n in [("a", 5), ("b", 5), ("c", 1)]
        ]


@pytest.mark.row("A-REG-1")
def test_an_unknown_id_has_the_last_precedence_and_dispatches_nothing():
    assert backend_precedence("nobody") == PRECEDENCE_UNKNOWN == 4294967295
    assert backend_dispatches("nobody") is False
    assert backend_registration("nobody") is None


@pytest.mark.row("A-REG-2")
def test_acquiring_an_unknown_id_names_it_the_known_ones_and_a_fix():
    with isolated(record("a"), record("b")), pytest.raises(BackendUnavailable) as caught:
        acquire("nobody")
    text = str(caught.value)
    assert "'nobody' is not linked" in text
    assert "Fix: use one of: a, b; or install" in text
    assert isinstance(caught.value, BackendError)
    assert caught.value.diagnostic_code == "B-CAP-002"
    assert pickle.loads(pickle.dumps(caught.value)) == caught.value


def test_an_empty_registry_says_so_wherever_names_are_listed():
    with isolated():
        assert registered_backends() == registered_backends_by_precedence() == ()
        with pytest.raises(BackendUnavailable, match=r"use one of: \(none is registered\)"):
            acquire("a")
        with pytest.raises(BackendUnavailable, match=r"\(none is registered\).*Fix: install a package"):
            select()


def test_a_backend_that_only_emits_is_listed_and_never_chosen():
    with isolated(record("emitter", 1, dispatches=False), record("runner", 2)):
        assert (backend_dispatches("emitter"), backend_dispatches("runner")) == (False, True)
        chosen = select()
    assert (chosen.chosen, chosen.losers[0].reason) == ("runner", "it emits programs and does not run them")


def test_a_duplicate_disables_that_id_alone():
    with isolated(record("a"), record("twice", 1), record("twice", 2)):
        assert [b.id for b in registered_backends()] == ["a"]
        assert problems() == {"twice": "it is provided more than once (this process, this process)"}
        assert select().chosen == "a"
        assert backend_dispatches("twice") is False
        for ask in (acquire, devices, backend_registration):
            with pytest.raises(BackendUnavailable, match="backend twice is disabled: it is provided more than once"):
                ask("twice")


@pytest.mark.parametrize(
    "made, problem",
    [
        (record("a", kind="toaster"), "kind 'toaster' is not one of: device, host, oracle, distributed"),
        (record("a", unavailable=broken), None),
    ],
)
def test_a_record_is_checked_when_it_is_first_used(made, problem):
    with isolated(made):
        assert problems() == {}
        assert (registered_backends()[0].problem() is None) == (problem is None)
        assert list(problems()) == ([] if problem is None else ["a"])
        with pytest.raises(BackendUnavailable, match=problem or "not available: asking it failed: RuntimeError"):
            acquire("a")


@pytest.mark.parametrize("id, precedence, agrees", [("a", 5, True), ("a", 6, False), ("b", 5, False)])
def test_a_record_agrees_with_its_name_in_id_and_precedence(id, precedence, agrees):
    listing = BackendListing("a", 5, lambda: record(id, precedence))
    assert (listing.problem() is None) == agrees
    if not agrees:
        assert listing.problem() == f"it is listed as a.5 and its record says {id}.{precedence}; the two must agree"


@pytest.mark.parametrize("name", ["a", "a:0"])
def test_whatever_goes_wrong_while_opening_is_one_error_with_its_cause(name):
    def opens(result):
        return lambda device=None: result

    with isolated(record("a", open=lambda device=None: broken())), pytest.raises(BackendUnavailable) as caught:
        acquire(name)
    assert "a did not open: RuntimeError: the driver is upside down" in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with isolated(record("a", open=opens(3))), pytest.raises(BackendUnavailable, match="opening backend a gave int"):
        acquire(name)
    with (
        isolated(record("a", open=opens(Fake("b")))),
        pytest.raises(BackendUnavailable, match="opening backend a gave the backend 'b'"),
    ):
        acquire(name)


def test_an_error_of_our_own_passes_through_open_unchanged():
    mine = UnsupportedFeature("this board is too old", fix="buy another")

    def refuse(device=None):
        raise mine

    with isolated(record("a", open=refuse)), pytest.raises(UnsupportedFeature) as caught:
        acquire("a")
    assert caught.value is mine


def test_a_registration_of_this_process_is_added_once():
    with isolated(record("a")):
        before = generation()
        register(record("mine", 3))
        assert [b.id for b in registered_backends_by_precedence()] == ["mine", "a"]
        assert generation() != before
        assert acquire("mine").id == "mine"
        refresh()
        assert [b.id for b in registered_backends()] == ["a", "mine"]
        for id in ("mine", "a"):
            with pytest.raises(ArgumentValueError, match=f"'{id}' is already registered"):
                register(record(id))
        for id in ("has.dot", "", "9", "a b", "a:0"):
            with pytest.raises(ArgumentValueError, match="not an id of a backend"):
                register(record(id))


def test_isolation_ends_with_its_block_even_after_an_error():
    outside, before = registered_backends(), generation()
    with isolated(record("only")):
        assert [b.id for b in registered_backends()] == ["only"]
        with isolated():
            assert registered_backends() == ()
        assert [b.id for b in registered_backends()] == ["only"]
    with pytest.raises(KeyError), isolated(record("only")):
        raise KeyError
    assert registered_backends() == outside
    assert generation() > before


def test_sixteen_threads_see_one_table():
    scans = []

    def scan(_):
        scans.append(1)
        time.sleep(0.01)
        return []

    shared = registry._Registry(scan)
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(shared.table())) for _ in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(scans) == 1
    assert len({id(table) for table in seen}) == 1


# -- devices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, index",
    [
        ("a:0", 0),
        ("a:1", 1),
        ("a:board 3060", 1),
        ("a:slow", 2),
        ("a:SLOW BOARD", 2),
        ("a:fast board 4090", 0),
        (" a : 1 ", 1),
    ],
)
def test_a_name_may_carry_an_index_or_part_of_a_devices_name(name, index):
    with isolated(record("a", devices=lambda: REAL)):
        assert acquire(name).device == index


def test_an_exact_name_wins_over_names_that_hold_it():
    both = (DeviceInfo(0, "board"), DeviceInfo(1, "board two"))
    with isolated(record("a", devices=lambda: both)):
        assert acquire("a:board").device == 0


def test_without_a_device_the_backend_picks_its_own():
    with isolated(record("a", devices=lambda: REAL)):
        assert acquire("a").device is None
        assert devices("a") == REAL


@pytest.mark.parametrize(
    "name, text",
    [
        ("a:fast", "'fast' fits 2 devices of backend a"),
        ("a:9", "has no device '9'"),
        ("a:lost", "has no device 'lost'"),
    ],
)
def test_an_ambiguous_or_absent_device_lists_the_choices(name, text):
    with isolated(record("a", devices=lambda: REAL)), pytest.raises(BackendUnavailable) as caught:
        acquire(name)
    assert text in str(caught.value)
    assert "use one of: a:0 (Fast Board 4090), a:1 (Fast Board 3060), a:2 (Slow Board)" in caught.value.fix


def test_a_backend_without_a_device_list_has_one_device_of_its_own_name():
    with isolated(record("solo")):
        assert devices("solo") == (DeviceInfo(0, "solo"),)
        assert acquire("solo:0").device is None
        with pytest.raises(BackendUnavailable, match="no device '1'"):
            acquire("solo:1")


def test_devices_that_cannot_be_had_are_an_error_with_a_fix():
    with isolated(record("a", devices=broken), record("b", devices=tuple)):
        with pytest.raises(BackendUnavailable, match=r"cannot name its devices: RuntimeError.*\(this process\)"):
            devices("a")
        with pytest.raises(BackendUnavailable, match="the backend sees none"):
            acquire("b:0")


@pytest.mark.parametrize("name", ["", ":", ":0", "a:", " "])
def test_what_is_no_name_is_refused(name):
    with isolated(record("a")), pytest.raises(ArgumentValueError, match='use "id" or "id:device" with one of: a'):
        acquire(name)
    with pytest.raises(ArgumentTypeError, match="None is not the name of a backend"):
        acquire(None)


# -- choosing ---------------------------------------------------------------------------------------------------------


def test_the_first_that_is_available_and_admits_wins_and_nobody_after_it_is_opened():
    opened, touched = [], []
    trap = frozenset((*TRAPS.ops(),))
    with isolated(
        record("gone", 1, unavailable=lambda: "no such board", opened=opened),
        record("weak", 2, opened=opened),
        record("good", 3, ops=trap, opened=opened),
        record("late", 4, opened=opened, unavailable=lambda: touched.append(1)),
    ):
        chosen = select(TRAPS)
        assert acquire_preferred_dispatch_backend(TRAPS).id == "good"
    assert (chosen.chosen, chosen.backend.id) == ("good", "good")
    assert [loser.name for loser in chosen.losers] == ["gone", "weak", "late"]
    reasons = {loser.name: loser.reason for loser in chosen.losers}
    assert reasons["gone"] == "no such board"
    assert "backend weak does not run the program; it lacks trap" in reasons["weak"]
    assert reasons["late"] == "ranks after good; not asked"
    assert str(chosen).splitlines()[0] == "good: chosen"
    assert "gone: no such board" in str(chosen)
    assert [b.id for b in opened] == ["weak", "good"] * 2
    assert [b.closed for b in opened] == [1, 0, 1, 0], "a loser that was opened is shut down"
    assert touched == []


@pytest.mark.row("A-REG-6")
def test_an_oracle_is_never_chosen_implicitly_and_named_when_it_is_the_only_one():
    opened = []
    with isolated(record("reference", 900, kind="oracle", opened=opened)):
        with pytest.raises(BackendUnavailable) as caught:
            acquire_preferred_dispatch_backend()
        text = str(caught.value)
        assert "no usable dispatch backend is available (reference: only used when asked for)" in text
        assert "Fix: ask for one by name: acquire('reference') or VYRE_BACKEND=reference" in text
        assert "fallback" not in text.lower()
        assert "falling back" not in text.lower()
        assert opened == []
        assert acquire("reference").id == "reference"
        assert acquire_preferred_dispatch_backend(allow_oracle=True).id == "reference"


def test_here_with_nothing_but_the_reference_installed_the_error_says_what_to_type():
    others = [b for b in registered_backends() if b.registration.kind in ("device", "host")]
    if others:
        assert select().chosen != "reference"
    else:
        with pytest.raises(BackendUnavailable, match="VYRE_BACKEND=reference"):
            select()
    assert acquire("reference").id == "reference"


def test_a_cluster_is_chosen_only_by_name():
    with isolated(record("cluster", 1, kind="distributed"), record("host", 2, kind="host")):
        chosen = select()
        assert chosen.chosen == "host"
        assert chosen.losers[0].reason == "only used when asked for"
        assert acquire("cluster").id == "cluster"


def test_emulated_devices_come_after_the_processor_itself_and_before_oracles():
    soft = record("soft", 1, devices=lambda: SOFT)
    with isolated(soft, record("cpu", 100, kind="host"), record("late", 500)):
        chosen = select()
        assert chosen.chosen == "cpu"
        assert chosen.losers[0].name == "soft"
        assert "run on the processor (soft raster)" in chosen.losers[0].reason
        assert acquire("soft").id == "soft"
    with isolated(soft, record("cpu", 100, kind="host", unavailable=lambda: "no compiler")):
        assert select().chosen == "soft"
    with isolated(soft, record("oracle", 0, kind="oracle")):
        assert select(allow_oracle=True).chosen == "soft"
    with isolated(record("mixed", 1, devices=lambda: (*SOFT, *REAL)), record("cpu", 100, kind="host")):
        assert select().chosen == "mixed"


def test_every_reason_is_told_when_nobody_can_be_chosen():
    with (
        isolated(
            record("a", 1, unavailable=lambda: "no such board"),
            record("b", 2, open=lambda device=None: broken()),
            record("c", 3, devices=broken),
            record("d", 4, kind="toaster"),
            record("e"),
            record("e"),
        ),
        pytest.raises(BackendUnavailable) as caught,
    ):
        select()
    text = str(caught.value)
    for reason in (
        "a: no such board",
        "b: backend b did not open: RuntimeError",
        "c: backend c cannot name its devices",
        "d: disabled: its kind 'toaster'",
        "e: disabled: it is provided more than once",
    ):
        assert reason in text
    assert "see problems()" in caught.value.fix


def test_a_backend_that_cannot_say_what_it_runs_loses_and_harms_nobody():
    class Confused(Fake):
        def supported_ops(self):
            raise RuntimeError("no idea")

    confused = record("confused", 1, open=lambda device=None: Confused("confused"))
    with isolated(confused, record("good", 2, ops=PLAIN.ops())):
        chosen = select(PLAIN)
    assert chosen.chosen == "good"
    assert "confused cannot say what it runs: RuntimeError: no idea" in chosen.losers[0].reason


def test_a_program_that_is_wrong_everywhere_is_not_blamed_on_the_backends():
    wrong = Program((), (1, 1, 1), (Store("missing", lit(0), lit(0)),))
    opened = []
    with isolated(record("a", opened=opened), record("b")), pytest.raises(InvalidProgram, match="'missing'"):
        select(wrong)
    assert [b.closed for b in opened] == [1]


# -- the user's own list ----------------------------------------------------------------------------------------------


@pytest.mark.row("T15")
def test_the_environment_is_read_at_the_call(monkeypatch):
    with isolated(record("a", 1), record("b", 2, devices=lambda: REAL), record("oracle", 900, kind="oracle")):
        assert select().chosen == "a"
        for value, chosen, device in [("b", "b", None), ("b:slow", "b:slow", 2), (" oracle ", "oracle", None)]:
            monkeypatch.setenv("VYRE_BACKEND", value)
            assert (select().chosen, select().backend.device) == (chosen, device)
        monkeypatch.setenv("VYRE_BACKEND", " ")
        assert select().chosen == "a"
        monkeypatch.delenv("VYRE_BACKEND")
        assert select().chosen == "a"


def test_a_named_backend_is_that_one_or_an_error(monkeypatch):
    with isolated(record("a", 1), record("gone", 2, unavailable=lambda: "no such board"), record("weak", 3)):
        monkeypatch.setenv("VYRE_BACKEND", "gone")
        with pytest.raises(BackendUnavailable, match="backend gone is not available: no such board"):
            select()
        monkeypatch.setenv("VYRE_BACKEND", "nobody")
        with pytest.raises(BackendUnavailable, match="not linked"):
            select()
        monkeypatch.setenv("VYRE_BACKEND", "weak")
        with pytest.raises(UnsupportedFeature, match="backend weak does not run the program"):
            select(TRAPS)
        assert acquire("a").id == "a", "a name in the call wins over the environment"


@pytest.mark.row("T13")
def test_a_list_is_the_whole_choice(monkeypatch):
    opened = []
    with isolated(
        record("best", 1, opened=opened),
        record("x", 2, unavailable=lambda: "no x", opened=opened),
        record("y", 3, unavailable=lambda: "no y", opened=opened),
    ):
        monkeypatch.setenv("VYRE_BACKEND", "x, y")
        with pytest.raises(BackendUnavailable) as caught:
            select()
    assert "no backend of VYRE_BACKEND can be used" in str(caught.value)
    assert "x: backend x is not available: no x" in str(caught.value)
    assert "y: backend y is not available: no y" in str(caught.value)
    assert opened == []


@pytest.mark.row("T14")
def test_using_a_later_one_of_the_list_warns_and_counts_and_strict_raises(monkeypatch):
    monkeypatch.setenv("VYRE_BACKEND", "x,y,z")
    records = record("x", unavailable=lambda: "no x"), record("y"), record("z")
    before = fallback_counts().get(("x", "y"), 0)
    with isolated(*records):
        with pytest.warns(FallbackWarning, match="running on y, because x cannot be used: .*no x") as told:
            chosen = select()
        assert (chosen.chosen, chosen.backend.id) == ("y", "y")
        assert [(loser.name, loser.reason[:12]) for loser in chosen.losers] == [
            ("x", "backend x is"),
            ("z", "listed after"),
        ]
        (event,) = told
        assert (event.message.skipped, event.message.used) == ("x", "y")
        assert event.filename == __file__
        assert str(pickle.loads(pickle.dumps(event.message))) == str(event.message)
        assert fallback_counts()["x", "y"] == before + 1
        with pytest.raises(BackendUnavailable, match="no x"):
            select(strict=True)
        monkeypatch.setenv("VYRE_STRICT", "1")
        with pytest.raises(BackendUnavailable, match="no x"):
            acquire_preferred_dispatch_backend()
        with pytest.warns(FallbackWarning):
            select(strict=False)
        monkeypatch.setenv("VYRE_STRICT", "perhaps")
        with pytest.raises(ArgumentValueError, match="VYRE_STRICT='perhaps' is neither yes nor no"):
            select()
        assert fallback_counts()["x", "y"] == before + 2


def test_the_first_of_the_list_is_used_without_a_word(monkeypatch):
    monkeypatch.setenv("VYRE_BACKEND", "x,y")
    with isolated(record("x"), record("y")), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert select(strict=True).chosen == "x"


def test_a_list_with_a_mistake_in_it_is_not_used_up_to_the_mistake(monkeypatch):
    with isolated(record("x")):
        monkeypatch.setenv("VYRE_BACKEND", "x,,")
        with pytest.raises(ArgumentValueError, match="VYRE_BACKEND='x,,' is not a list of backends"):
            select()


def test_a_program_that_is_wrong_everywhere_ends_the_list(monkeypatch):
    monkeypatch.setenv("VYRE_BACKEND", "x,y")
    wrong = Program((), (1, 1, 1), (Store("missing", lit(0), lit(0)),))
    with isolated(record("x"), record("y")), pytest.raises(InvalidProgram):
        select(wrong)


# -- what a probe learned ---------------------------------------------------------------------------------------------


def counting(key, *, unavailable=None, found=SOFT):
    """A registration that remembers, and the list of questions it was asked."""
    asked = []

    def why():
        asked.append("unavailable")
        return unavailable

    def names():
        asked.append("devices")
        return found

    remembers = None if key is None else lambda: key
    return record("soft", 1, unavailable=why, devices=names, probe_key=remembers), asked


def test_the_second_choice_asks_nobody_while_the_key_stays_the_same():
    host = record("cpu", 100, kind="host")
    first, asked = counting("icd 1")
    with isolated(first, host):
        select()
    assert asked == ["devices"]
    again, asked = counting("icd 1")
    with isolated(again, host):
        chosen = select()
    assert (chosen.chosen, asked) == ("cpu", [])
    assert "soft raster" in chosen.losers[0].reason
    changed, asked = counting("icd 2")
    with isolated(changed, host):
        select()
    assert asked == ["devices"]


@pytest.mark.parametrize("key", ["k", None])
def test_a_choice_does_not_ask_whether_a_device_on_the_processor_opens(key):
    """To find out may mean to open it, and another one is taken anyway."""
    soft, asked = counting(key)
    with isolated(soft, record("cpu", 100, kind="host"), record("oracle", 200, kind="oracle")):
        assert select().chosen == preferred() == "cpu"
        assert "unavailable" not in asked
        assert probed(registered_backends()[2]) == Probe(None, SOFT)
        assert asked.count("unavailable") == 1  # who asks for it is told
        assert select().chosen == "cpu"


def test_a_device_on_the_processor_that_does_not_open_is_chosen_by_nobody():
    soft, asked = counting("k", unavailable="its results are wrong")
    with isolated(soft, record("oracle", 200, kind="oracle")):
        with pytest.raises(BackendUnavailable, match="soft: backend soft is not available: its results are wrong"):
            select()
        assert select(allow_oracle=True).losers[0].reason.startswith("backend soft is not available: its results")
        assert "unavailable" in asked


def test_a_device_of_its_own_is_asked_whether_it_opens():
    real, asked = counting("k", found=REAL)
    with isolated(real, record("cpu", 100, kind="host")):
        assert select().chosen == "soft"
    assert "unavailable" in asked


def test_a_choice_right_after_another_asks_no_code_of_a_backend_that_remembers(monkeypatch):
    keys, clock = [], [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    soft = record("soft", 1, devices=lambda: SOFT, probe_key=lambda: keys.append(1) or "k")
    with isolated(soft, record("cpu", 100, kind="host")):
        for later, asks in ((0, True), (0, False), (LOOK_EVERY_S, True), (0, False)):
            clock[0] += later
            keys.clear()
            assert select().chosen == "cpu"
            assert bool(keys) == asks
        next(b for b in registered_backends() if b.id == "soft").forget()
        assert select().chosen == "cpu"
        assert keys


def test_a_refusal_is_remembered_with_its_reason():
    for expected in (["devices", "unavailable"], []):
        refusing, asked = counting("k", unavailable="no loader", found=())
        with isolated(refusing, record("cpu", 100, kind="host")):
            assert select().losers[0].reason == "no loader"
        assert asked == expected


def test_asking_for_a_backend_by_name_never_relies_on_memory():
    refusing, _ = counting("k", unavailable="no loader")
    with isolated(refusing, record("cpu", 100, kind="host")):
        select()
    mended, _ = counting("k")
    with isolated(mended):
        assert registered_backends()[0].unavailable() is None
        assert acquire("soft").id == "soft"


def test_a_memory_that_turns_out_wrong_is_dropped():
    real, _ = counting("k", found=REAL)
    with isolated(real, record("cpu", 100, kind="host")):
        assert select().chosen == "soft"
    vanished, asked = counting("k", unavailable="unplugged", found=())
    with isolated(vanished, record("cpu", 100, kind="host")):
        assert select().chosen == "cpu"
        asked.clear()
        assert select().losers[0].reason == "unplugged"
        assert "unavailable" in asked


def test_without_a_key_or_with_one_that_fails_nothing_is_remembered():
    for key in (None, broken):
        for _ in range(2):
            asked = []
            plain = record("a", unavailable=lambda asked=asked: asked.append(1), probe_key=key)
            with isolated(plain):
                select()
            assert asked
    assert not cache_dir().exists()


# -- what plugins do wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made, message",
    [
        (lambda: 3, "int is not a registration"),
        (lambda: record(5), "the id of a registration is a int"),
        (lambda: record("x", "9"), "the precedence of backend x is a str"),
        (lambda: record("x", None), "the precedence of backend x is a NoneType"),
        (lambda: record("x", True), "the precedence of backend x is a bool"),
    ],
)
def test_a_record_that_cannot_be_sorted_is_not_registered(made, message):
    with isolated(record("a")):
        with pytest.raises(ArgumentTypeError, match=f"{message}.*Fix: pass"):
            register(made())
        with pytest.raises(ArgumentTypeError, match=message), isolated(made()):
            pass
        assert [b.id for b in registered_backends_by_precedence()] == ["a"]


def leave(*_):
    raise SystemExit(3)


def test_a_plugin_that_leaves_while_it_loads_is_disabled_alone():
    listing = BackendListing("a", 5, leave)
    assert listing.problem() == "loading its record failed: SystemExit: 3"


@pytest.mark.parametrize("member", ["open", "unavailable", "devices", "probe_key"])
def test_a_plugin_that_leaves_is_not_chosen_and_ends_nothing(member):
    with isolated(record("a", 1, **{member: leave}), record("b", 2)):
        chosen = select()
        assert chosen.chosen == ("a" if member == "probe_key" else "b")
        if member != "probe_key":
            assert "SystemExit: 3" in chosen.losers[0].reason
    with isolated(record("a", 1, open=leave)), pytest.raises(BackendUnavailable, match="did not open: SystemExit: 3"):
        acquire("a")


@pytest.mark.parametrize("answer", ["", False, True, 0, ["x"]])
def test_an_answer_that_is_no_reason_disables_the_backend(answer):
    with isolated(record("a", 1, unavailable=lambda: answer, probe_key=lambda: "k"), record("b", 2)):
        assert problems() == {}
        assert select().chosen == "b"
        assert "neither a reason nor None" in problems()["a"]
        assert select().losers[0].reason.startswith("disabled: its unavailable() answers")
        with pytest.raises(BackendUnavailable, match="neither a reason nor None"):
            acquire("a")


@pytest.mark.parametrize("named", ["a board", DeviceInfo("0", "board"), DeviceInfo(0, None), None])
def test_devices_that_are_none_disable_the_backend(named):
    with isolated(record("a", 1, devices=lambda: [REAL[0], named], probe_key=lambda: "k"), record("b", 2)):
        assert select().chosen == "b"
        assert "which is not a DeviceInfo" in problems()["a"]
        with pytest.raises(BackendUnavailable, match="which is not a DeviceInfo"):
            acquire("a:0")


def test_blocks_of_two_threads_may_overlap():
    outside = registered_backends()
    first, second = isolated(record("first")), isolated(record("second"))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert [b.id for b in registered_backends()] == ["second"]
    second.__exit__(None, None, None)
    assert registered_backends() == outside


class Placed(Fake):
    def __init__(self, device=""):
        super().__init__("a", device)


class Fixed(Fake):
    device = property(lambda self: "", lambda self, value: None if value is None else leave_it())

    def __init__(self):
        super().__init__("a")


def leave_it():
    raise AttributeError


def test_a_backend_is_told_the_name_of_the_device_that_was_chosen():
    def opens(make):
        return record("a", devices=lambda: REAL, open=lambda device=None: make())

    with isolated(opens(Placed)):
        assert acquire("a:Slow").device == "Slow Board"
        assert acquire("a").device == ""
    with isolated(opens(lambda: Placed("my own"))):
        assert acquire("a:1").device == "my own"
    with isolated(opens(Fixed)):
        assert acquire("a:1").device == ""


@pytest.mark.parametrize("program", ["x", 3, ()])
def test_only_a_program_is_selected_for(program):
    with isolated(record("a")), pytest.raises(ArgumentTypeError, match=r"not a program.*Fix: pass kernel\.program"):
        select(program)
