"""Gates: who may be compiled, asked once per program."""

import threading

import pytest

import vyre
from vyre.driver.admission import gates as enforce
from vyre.driver.admission.gates import Allow, Chain, Deny, EnforceGate, RegistryGate, install, isolated_gates
from vyre.driver.contract import VyreBackend
from vyre.driver.guard import compile as pipeline
from vyre.driver.guard.backend import guarded
from vyre.errors import ArgumentTypeError, ArgumentValueError, DispatchFailed, InvalidProgram, UnsupportedFeature
from vyre.foundation.ir.dtypes import u8, u32
from vyre.foundation.ir.nodes import Call, Return, Store, lit
from vyre.foundation.ir.program import Program, read, write_only

ECHO = Program([read("x", 0, u8), write_only("out", 1, u8)], (1, 1, 1), [Return()])
CALLING = Program([write_only("out", 0, u32, 1)], (1, 1, 1), [Store("out", lit(0), Call("mine.op", (lit(1),)))])
NO = Deny("taste", "Fix: write another one")


class MockBackend(VyreBackend, contract=1):
    """Echoes."""

    id = "mock"

    def dispatch(self, program, inputs, config=None, *, out=None):
        return [bytes(b) for b in inputs]


class Fixed(EnforceGate):
    def __init__(self, verdict, name="fixed"):
        self.verdict, self.name, self.asked = verdict, name, []

    def evaluate(self, program):
        self.asked.append(program.fingerprint)
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


def copy(program):
    return Program.from_wire(program.to_wire())


# ---- verdicts and chains --------------------------------------------------------------------------------------------


@pytest.mark.row("A-EG-1")
@pytest.mark.parametrize("join", [Chain, lambda a, b: a & b], ids=["Chain", "&"])
def test_a_chain_ends_at_the_first_that_denies(join):
    first, second = Fixed(NO), Fixed(Allow())
    chain = join(first, second)
    assert chain.name == "chain"
    assert chain.evaluate(ECHO) is NO
    assert (len(first.asked), len(second.asked)) == (1, 0)


@pytest.mark.row("A-EG-2")
def test_a_chain_allows_what_all_allow():
    gates = [Fixed(Allow()) for _ in range(3)]
    assert (gates[0] & gates[1] & gates[2]).evaluate(ECHO) == Allow()
    assert [len(g.asked) for g in gates] == [1, 1, 1]
    assert Chain().evaluate(ECHO) == Allow()


@pytest.mark.row("A-EG-3")
@pytest.mark.parametrize("detail", ["", "because", "Fix:", "Fix: .", "fix: it", " Fix: it"])
def test_a_denial_says_what_to_do(detail):
    with pytest.raises(ArgumentValueError, match=r"policy taste denies without saying what to do.*Fix: pass detail"):
        Deny("taste", detail)


@pytest.mark.parametrize("gate", [None, Allow, lambda program: Allow()])
def test_only_gates_are_gates(gate):
    for use in (Chain, install, lambda g: Fixed(Allow()) & g):
        with pytest.raises(ArgumentTypeError, match=r"is not a gate.*Fix: pass a subclass of EnforceGate"):
            use(gate)


# ---- compiling ------------------------------------------------------------------------------------------------------


def test_without_gates_everything_may_be_compiled():
    assert enforce.gates().gate.gates == ()
    assert pipeline.compile(MockBackend(), ECHO).dispatch([b"a"]) == [b"a"]


def test_what_is_denied_is_not_compiled_and_the_policy_is_named():
    class Counting(MockBackend):
        compiled = 0

        def compile_native(self, program, config):
            self.compiled += 1

    backend = Counting()
    uses = (
        lambda: pipeline.compile(backend, ECHO),
        lambda: guarded(backend).dispatch(ECHO, [b"a"]),
        lambda: guarded(backend).compile_native(ECHO, vyre.DispatchConfig()),
        lambda: vyre.compile(ECHO, backend=backend),
    )
    with isolated_gates(Fixed(NO)):
        for use in uses:
            with pytest.raises(InvalidProgram, match=r"policy taste denies the program .*Fix: write another one") as e:
                use()
            assert e.value.context["policy"] == "taste"
    assert backend.compiled == 0
    for use in uses:
        use()


def test_a_dispatch_that_was_allowed_is_denied_under_a_new_gate():
    guard = guarded(MockBackend())
    assert guard.dispatch(ECHO, [b"a"]) == [b"a"]
    with isolated_gates(Fixed(NO)), pytest.raises(InvalidProgram, match="policy taste denies"):
        guard.dispatch(ECHO, [b"a"])
    assert guard.dispatch(ECHO, [b"a"]) == [b"a"]


@pytest.mark.row("A-EG-4")
def test_an_operation_that_nobody_registered_is_denied():
    class Anything(MockBackend):
        def supported_ops(self):
            return CALLING.ops() | ECHO.ops()

    known = set(ECHO.ops())
    with isolated_gates(RegistryGate(known)):
        pipeline.compile(Anything(), ECHO)
        with pytest.raises(InvalidProgram, match=r"policy registry denies .*Fix: register .*mine\.op"):
            pipeline.compile(Anything(), CALLING)
    with isolated_gates(RegistryGate(lambda: known | CALLING.ops())):
        pipeline.compile(Anything(), CALLING)
    with pytest.raises(UnsupportedFeature):
        pipeline.compile(MockBackend(), CALLING)


@pytest.mark.row("A-EG-5")
def test_a_gate_is_asked_once_per_program_and_set_of_gates():
    gate, backend = Fixed(Allow()), MockBackend()
    with isolated_gates(gate):
        compiled = pipeline.compile(backend, ECHO)
        for _ in range(3):
            compiled.dispatch([b"a"])
            pipeline.compile(MockBackend(), copy(ECHO))
            guarded(backend).dispatch(copy(ECHO), [b"b"])
        assert gate.asked == [ECHO.fingerprint]
        install(Fixed(Allow()))
        pipeline.compile(backend, ECHO)
        assert len(gate.asked) == 2
    with isolated_gates(gate):
        pipeline.compile(backend, ECHO)
    assert len(gate.asked) == 3


def test_denials_are_remembered_too():
    gate = Fixed(NO)
    with isolated_gates(gate):
        for _ in range(2):
            with pytest.raises(InvalidProgram):
                pipeline.compile(MockBackend(), ECHO)
    assert len(gate.asked) == 1


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(enforce, "REMEMBERED", 2)
    programs = [Program([read("x", 0, u8), write_only("out", 1, u8)], (1, 1, 1), [Return()] * n) for n in (1, 2, 3)]
    gate = Fixed(Allow())
    with isolated_gates(gate):
        for p in (*programs, programs[2], programs[0]):
            enforce.enforce(p)
    assert [programs[k].fingerprint for k in (0, 1, 2, 0)] == gate.asked


def test_installed_gates_are_asked_in_order():
    first, second = Fixed(Allow()), Fixed(NO)
    with isolated_gates():
        install(first)
        install(second)
        assert enforce.gates().gate.gates == (first, second)
        with pytest.raises(InvalidProgram):
            enforce.enforce(ECHO)
    assert (len(first.asked), len(second.asked)) == (1, 1)
    assert enforce.gates().gate.gates == ()


def test_gates_hold_in_every_thread():
    seen = []

    def work():
        try:
            pipeline.compile(MockBackend(), ECHO)
        except InvalidProgram as e:
            seen.append(e.context["policy"])

    with isolated_gates(Fixed(NO)):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(10)
    assert seen == ["taste"]


@pytest.mark.parametrize(
    "verdict, error, text",
    [
        (ValueError("boom"), DispatchFailed, r"gate fixed raised ValueError: boom.*Fix: correct the gate"),
        (UnsupportedFeature("mine", fix="yours"), UnsupportedFeature, r"mine\. Fix: yours"),
        (None, ArgumentTypeError, r"gate fixed answers with NoneType.*Fix: return Allow\(\) or Deny"),
        (True, ArgumentTypeError, r"gate fixed answers with bool.*Fix: "),
    ],
    ids=["raises", "raises one of ours", "nothing", "a bool"],
)
def test_a_gate_that_does_not_answer_allows_nothing(verdict, error, text):
    with isolated_gates(Fixed(verdict)), pytest.raises(error, match=text):
        pipeline.compile(MockBackend(), ECHO)


def test_a_program_without_bytes_is_left_to_admission():
    class Blind(EnforceGate):
        name = "blind"

        def evaluate(self, program):
            return Allow()

    wrong = Program([write_only("out", 0, u32, 1)], (1, 1, 1), [Store("out", lit(0), Call("x" * 70000, ()))])
    with isolated_gates(Blind()), pytest.raises((InvalidProgram, UnsupportedFeature), match="Fix: "):
        pipeline.compile(MockBackend(), wrong)
