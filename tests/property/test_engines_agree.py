"""Two engines, one meaning: random programs give the same bytes on both, in every schedule and in canonical form."""

import random

import pytest
from hypothesis import HealthCheck, given, settings

from vyre.backends.reference import Schedule, run
from vyre.backends.reference.engines import numpy_engine
from vyre.conform.programs.random import random_program
from vyre.conform.programs.strategies import valid_programs
from vyre.errors import DiagCode
from vyre.foundation.ir.dtypes import LIVE_TAGS, u32
from vyre.foundation.ir.nodes import Block, Let, Return, Store, lit
from vyre.foundation.ir.program import Program, output
from vyre.foundation.ir.visit import walk

pytestmark = pytest.mark.check

BLOCK = 40
BLOCKS = 6
SWEEP_BLOCK = 500
SWEEP_BLOCKS = 40


def outcome(case, engine, program=None, **options):
    """Outputs and out-of-bounds counts: everything that two runs must share."""
    result = run(
        program or case.program,
        case.inputs,
        grid=case.grid,
        output_elements=case.output_elements,
        engine=engine,
        **options,
    )
    return [bytes(o) for o in result.outputs], result.oob


def check(case, seed=0):
    expected = outcome(case, "scalar")
    assert outcome(case, "scalar", schedule="reversed") == expected
    assert outcome(case, "scalar", schedule=Schedule.seeded(seed), raise_on_race=True) == expected
    assert outcome(case, "numpy") == expected
    assert outcome(case, "numpy", case.program.canonicalized()) == expected


def check_seeds(seeds, **options):
    for seed in seeds:
        case = random_program(random.Random(seed), **options)
        try:
            check(case, seed)
        except Exception as e:
            e.add_note(f"seed {seed} of random_program, on a grid of {case.grid}:\n{case.program}")
            raise


@pytest.mark.parametrize("block", range(BLOCKS))
def test_engines_agree_on_random_programs(block):
    check_seeds(range(block * BLOCK, (block + 1) * BLOCK))


@pytest.mark.parametrize("block", range(2))
def test_engines_agree_on_programs_of_32_bit_types(block):
    check_seeds(range(10_000 + block * BLOCK, 10_000 + (block + 1) * BLOCK), wide=False, max_statements=30)


def test_engines_agree_when_workgroups_run_one_at_a_time(monkeypatch):
    monkeypatch.setattr(numpy_engine, "CHUNK_LANES", 1)
    check_seeds(range(20_000, 20_000 + BLOCK))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(valid_programs(max_statements=10))
def test_engines_agree_on_programs_that_shrink(case):
    check(case)


def test_the_random_programs_use_the_whole_language():
    types, kinds = set(), set()
    for seed in range(BLOCK * BLOCKS):
        program = random_program(random.Random(seed)).program
        types |= {b.element.tag for b in program.buffers}
        kinds |= {type(item).__name__ for item in walk(program.entry)}
    assert types == LIVE_TAGS
    assert kinds >= {
        "Assign", "Atomic", "Barrier", "BinOp", "Bitcast", "Block", "BufLen", "Cast", "Fma", "If", "InvocationId",
        "Let", "Lit", "Load", "LocalId", "Loop", "Region", "Return", "Select", "Store", "SubgroupBallot",
        "SubgroupLocalId", "SubgroupReduce", "SubgroupShuffle", "SubgroupSize", "UnOp", "Var", "WorkgroupId",
    }  # fmt: skip


@pytest.mark.parametrize("last", [Let("x", lit(0)), Store("out", lit(0), lit(1))], ids=["let", "store"])
def test_a_block_that_returns_ends_its_sequence_as_in_canonical_form(last):
    for block in (Block([Return()]), Block([last, Block([Return()])])):
        program = Program([output("out", 0, u32, 1)], (1, 1, 1), [block, Store("out", lit(0), lit(2))])
        refused = [DiagCode.V112 in {issue.code for issue in p.validate()} for p in (program, program.canonicalized())]
        assert refused[0] == refused[1]
        assert refused[0] == (not isinstance(block.body[0], Let))


def test_lockstep_counts_no_more_steps_than_invocations_one_by_one():
    for seed in range(BLOCK):
        case = random_program(random.Random(seed))
        steps = {
            engine: run(
                case.program, case.inputs, grid=case.grid, output_elements=case.output_elements, engine=engine
            ).steps
            for engine in ("scalar", "numpy")
        }
        # Lanes leave a `while` as soon as its flag is false, where the scalar engine looks at it once more.
        assert 0 < steps["numpy"] <= steps["scalar"]


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(SWEEP_BLOCKS))
def test_engines_agree_on_twenty_thousand_programs(block):
    first = 1_000_000 + block * SWEEP_BLOCK
    check_seeds(range(first, first + SWEEP_BLOCK))
