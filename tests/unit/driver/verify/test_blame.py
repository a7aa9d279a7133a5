"""Blame names the operation that a test made wrong, and leaves hardly more of the program than that."""

import random
from dataclasses import replace

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, barrier, f32, gid, lid, shared, u32
from vyre.backends.cpu import REGISTRATION as CPU
from vyre.backends.reference import REGISTRATION as REFERENCE
from vyre.cli.commands.blame import Document
from vyre.conform.programs.random import random_program
from vyre.driver import DispatchConfig, EvidenceBundle
from vyre.driver.selection.registry import isolated
from vyre.driver.verify.blame import blame
from vyre.driver.verify.evidence import SAME, capture, replay
from vyre.errors import ArgumentTypeError, ArgumentValueError, BackendUnavailable
from vyre.foundation.check.determinism import determinism
from vyre.foundation.ir.nodes import BinOp
from vyre.foundation.ir.ops import BinaryOp
from vyre.foundation.ir.visit import walk

from ....support import cli_tool
from ....support.cli_tool import document, inside, refused
from ....support.mistaken import contracted, mistaken, other_operator, stale, tail_lost, without_barriers

files = cli_tool.files

SWAPS = {
    BinaryOp.ADD: BinaryOp.SUB, BinaryOp.SUB: BinaryOp.ADD, BinaryOp.MUL: BinaryOp.ADD, BinaryOp.LT: BinaryOp.LE,
    BinaryOp.BIT_XOR: BinaryOp.BIT_OR, BinaryOp.BIT_AND: BinaryOp.BIT_OR, BinaryOp.MIN: BinaryOp.MAX,
    BinaryOp.SHL: BinaryOp.SHR, BinaryOp.SHR: BinaryOp.SHL,
}  # fmt: skip
"""Operators, and what is computed instead."""


@vyre.kernel(workgroup=8)
def mix(x: In[u32], y: In[f32], hashed: Out[u32], waves: Out[f32]) -> None:
    if gid.x < len(x):
        h = x[gid.x]
        for k in range(4):
            h = (h ^ (h >> 3)) * 2654435761
            if (h & 1) == 0:
                h = h + k
        hashed[gid.x] = h
        v = y[gid.x]
        for _ in range(9):
            v = 3.9 * v * (1.0 - v) + 0.0001
        waves[gid.x] = v


@vyre.kernel(workgroup=64)
def reversed_groups(x: In[u32], out: Out[u32]) -> None:
    tile = shared(u32, 64)
    tile[lid.x] = x[gid.x]
    barrier()
    out[gid.x] = tile[63 - lid.x]


@vyre.kernel(workgroup=(4, 4))
def table(x: InOut[u32]) -> None:
    x[gid.y * 8 + gid.x] = gid.y * 100 + gid.x


WORDS = np.arange(1, 20, dtype=np.uint32)
FLOATS = np.linspace(0.1, 0.9, 19, dtype=np.float32)


def blamed(planted, kernel, *args, grid=None, **options):
    with isolated(mistaken(**planted), REFERENCE):
        return blame(kernel.on("mistaken").evidence(*args, grid=grid), **options)


@pytest.mark.parametrize("inner", [REFERENCE, pytest.param(CPU, marks=pytest.mark.check)], ids=lambda r: r.id)
@pytest.mark.parametrize("wrong", [BinaryOp.BIT_XOR, BinaryOp.SHR, BinaryOp.MUL, BinaryOp.BIT_AND])
def test_a_wrong_operator_is_named_with_its_operands(wrong, inner):
    planted = {"change": other_operator(wrong, SWAPS[wrong]), "inner": inner}
    found = blamed(planted, mix, WORDS, FLOATS)
    assert found.wrong.operation == wrong.name.lower()
    assert found.statements <= 4 < 8 <= found.whole
    assert (found.bundle.outcome.by, found.bundle.expected.by) == ("mistaken", "reference")
    with isolated(mistaken(**planted), REFERENCE):
        assert replay(found.bundle, "mistaken").verdict == SAME
        assert replay(found.bundle, "reference").as_expected
    assert wrong.name.lower() in found._repr_html_()


def test_a_contraction_is_the_sum_of_a_product():
    found = blamed({"change": contracted}, mix, WORDS, FLOATS)
    assert found.wrong.operation == "add"
    assert found.wrong.difference.ulps > 0
    product, *_ = found.wrong.operands
    assert "*" in product.expression


@pytest.mark.check
def test_memory_that_another_invocation_has_yet_to_write_is_a_load():
    x = np.arange(1, 129, dtype=np.uint32)
    found = blamed({"change": without_barriers, "inner": CPU}, reversed_groups, x)
    assert found.wrong.operation == "load"
    assert found.wrong.expression.startswith("tile[")


def test_where_every_value_is_right_it_is_the_store():
    found = blamed({"twist": tail_lost}, mix, WORDS, FLOATS)
    assert found.wrong.operation == "store"
    assert found.wrong.invocation is None


@pytest.mark.parametrize("wrong", [BinaryOp.ADD, BinaryOp.MUL])
def test_an_operator_that_counts_invocations_is_told_from_what_it_counts(wrong):
    """Looking at values of a grid with two axes takes sums and products, too."""
    found = blamed({"change": other_operator(wrong, SWAPS[wrong])}, table, np.zeros(64, np.uint32), grid=(2, 2))
    assert found.wrong.operation == wrong.name.lower()


def planted_in(seed):
    """A random program in which one operator is wrong, and differs."""
    rng = random.Random(seed)
    while True:
        case = random_program(rng)
        used = sorted({e.op for e in walk(case.program.entry) if isinstance(e, BinOp) and e.op in SWAPS}, key=str)
        if not used or determinism(case.program, case.grid).verdict != "proved":
            continue
        wrong = rng.choice(used)
        config = DispatchConfig(grid_override=case.grid, output_elements=case.output_elements or None)
        with isolated(mistaken(other_operator(wrong, SWAPS[wrong])), REFERENCE):
            both = [
                capture(backend, case.program, case.inputs, config)
                for backend in (vyre.acquire("mistaken"), vyre.acquire("reference"))
            ]
            if both[0].outcome.outputs != both[1].outcome.outputs:
                return wrong, both[0]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.check) for seed in range(2, 20))])
def test_the_planted_operator_of_a_random_program_is_named(seed):
    wrong, bundle = planted_in(seed)
    with isolated(mistaken(other_operator(wrong, SWAPS[wrong])), REFERENCE):
        found = blame(bundle)
    assert found.wrong.operation == wrong.name.lower()
    assert found.statements <= 10


# ---- what cannot be blamed ------------------------------------------------------------------------------------------


def test_backends_that_agree_here_are_told_with_what_to_look_for():
    with pytest.raises(ArgumentValueError, match=r"mistaken and reference agree here.*Fix: look for what ran before"):
        blamed({}, mix, WORDS, FLOATS)
    with pytest.raises(ArgumentValueError, match="agree here"):
        blamed({"change": stale()}, mix, WORDS, FLOATS)


def test_two_right_results_of_a_race_are_no_case():
    @vyre.kernel(workgroup=8)
    def last(x: InOut[u32]) -> None:
        x[0] = gid.x + x[gid.x]

    with pytest.raises(ArgumentValueError, match=r"cannot be compared here \(order\)\. Fix: read why in the log"):
        blamed({"twist": lambda _, outputs: outputs[0].reverse()}, last, WORDS)


@pytest.mark.parametrize("use", [replay, blame])
def test_the_path_of_a_file_is_no_evidence(use):
    with pytest.raises(ArgumentTypeError, match=r'got a str\. Fix: read the file first: EvidenceBundle.read\("FILE"\)'):
        use("x.evidence")


def test_the_judge_and_who_is_not_here_cannot_be_blamed():
    bundle = mix.on("reference").evidence(WORDS, FLOATS)
    with pytest.raises(ArgumentValueError, match=r"reference cannot be blamed: it is the judge.*Fix: name the backend"):
        blame(bundle)
    with isolated(CPU), pytest.raises(ArgumentValueError, match=r"there is no judge\. Fix: install an oracle"):
        blame(bundle, "cpu")
    with pytest.raises(BackendUnavailable, match="'nowhere' is not linked"):
        blame(bundle, "nowhere")
    with pytest.raises(ArgumentValueError, match=r"left out of the evidence\. Fix: keep them"):
        blame(bundle.without_inputs(), "cpu")


def test_tries_are_bounded_and_the_settings_stay():
    before, seen = vyre.config.show(), []
    planted = {"change": other_operator(BinaryOp.BIT_XOR, BinaryOp.BIT_OR)}
    found = blamed(planted, mix, WORDS, FLOATS, tries=5, step=seen.append)
    assert found.tries == len(seen) <= 5
    assert found.statements > 3
    assert vyre.config.show() == before


def test_candidates_leave_no_evidence_and_no_word_in_the_log(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("VYRE_EVIDENCE", str(tmp_path / "kept"))
    monkeypatch.setenv("VYRE_SHADOW", "1")
    found = blamed({"change": other_operator(BinaryOp.MUL, BinaryOp.ADD)}, mix, WORDS, FLOATS)
    assert found.wrong.operation == "mul"
    assert not (tmp_path / "kept").exists()
    assert [r.getMessage() for r in caplog.records if r.name == "vyre.shadow"] == []


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command_prints_what_is_wrong_and_writes_the_smallest_dispatch(files, capsys):
    planted = {"change": other_operator(BinaryOp.BIT_XOR, BinaryOp.BIT_OR)}
    with isolated(mistaken(**planted), REFERENCE):
        mix.on("mistaken").evidence(WORDS, FLOATS).write("mix.evidence")
        told = document(capsys, Document, "blame", "mix.evidence")
        assert (told["operation"], told["backend"], told["reference"]) == ("bit_xor", "mistaken", "reference")
        assert told["found"] != told["expected"]
        assert told["evidence"] == "mix.small.evidence"
        small = EvidenceBundle.read("mix.small.evidence")
        assert str(small.program) == told["program"]
        assert inside("blame", "mix.evidence", "-o", "other.evidence") == 0
    said = capsys.readouterr().out
    assert said.startswith("bit_xor is wrong on mistaken: ")
    assert said.endswith("evidence: vyre replay other.evidence\n")
    assert " statements are left after " in said


def test_what_the_command_cannot_do_is_said(files, capsys):
    mix.on("cpu").evidence(WORDS, FLOATS).write("mix.evidence")
    assert "cpu and reference agree here" in refused(capsys, "blame", "mix.evidence")
    assert "--tries 0 tries nothing" in refused(capsys, "blame", "mix.evidence", "--tries", "0")
    assert "no file can be there" in refused(capsys, "blame", "mix.evidence", "-o", "no/where.evidence")
    assert "cannot be read" in refused(capsys, "blame", "absent.evidence")
    whole = EvidenceBundle.read("mix.evidence")
    replace(whole, program=whole.program.replace(entry=())).write("empty.evidence")
    assert "agree here" in refused(capsys, "blame", "empty.evidence")
