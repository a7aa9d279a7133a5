"""A program that passes validation runs: it may trap, exceed its steps or be declared unsupported, and nothing else."""

import random

import pytest

from vyre.backends.reference import run
from vyre.conform.programs.random import random_program
from vyre.errors import StepLimitExceeded, Trap, UnsupportedFeature
from vyre.foundation.check.validate import validate
from vyre.foundation.ir.dtypes import BY_NAME, u32
from vyre.foundation.ir.nodes import (
    Atomic,
    Barrier,
    BinOp,
    Block,
    Cast,
    If,
    InvocationId,
    Lit,
    LocalId,
    Loop,
    Return,
    Store,
    SubgroupReduce,
    UnOp,
    WorkgroupId,
)
from vyre.foundation.ir.nodes import Trap as TrapNode
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, ReduceOp, UnaryOp
from vyre.foundation.ir.report import Capabilities
from vyre.foundation.ir.visit import rewrite

from ...support.tiers import first_quick

ALLOWED = (Trap, StepLimitExceeded, UnsupportedFeature)


def mutated(program, rng):
    """The program with a few random changes, most of which keep its types."""

    def expr(e):
        if rng.random() > 0.08:
            return e
        match e:
            case BinOp(op=op):
                return e.replace(op=rng.choice([o for o in BinaryOp if o.rule == op.rule]))
            case UnOp(op=op):
                return e.replace(op=rng.choice([o for o in UnaryOp if o.rule == op.rule]))
            case Lit(dtype=t):
                return Lit(t, rng.choice([0, 1, 2, 31, 32, 0x7FFFFFFF, 0xFFFFFFFF]) & (1 if t.name == "bool" else ~0))
            case InvocationId() | LocalId() | WorkgroupId():
                return rng.choice([InvocationId, LocalId, WorkgroupId])(rng.randrange(3))
            case Atomic(expected=None):
                return e.replace(op=rng.choice([o for o in AtomicOp if o is not AtomicOp.COMPARE_EXCHANGE]))
            case SubgroupReduce():
                return e.replace(op=rng.choice(list(ReduceOp)))
            case Cast():
                return e.replace(target=rng.choice(list(BY_NAME.values())))
        return e

    def node(n):
        if rng.random() > 0.05:
            return n
        match n:
            case If():
                return rng.choice([n.then, n.orelse, (n, n), If(n.condition, n.orelse, n.then)])
            case Loop():
                return rng.choice([(Block(n.body),), (n, Barrier()), (n, n)])
            case Store():
                return rng.choice([(), (n, n), (Barrier(), n), (n, TrapNode(Lit(u32, 7), "planted")), (Return(),)])
            case Barrier():
                return ()
        return n

    return program.replace(entry=rewrite(program.entry, expr=expr, node=node))


def outcome(case, program, engine):
    try:
        result = run(
            program, case.inputs, grid=case.grid, output_elements=case.output_elements, engine=engine, max_steps=200_000
        )
    except ALLOWED as e:
        return type(e)
    return result.outputs


@pytest.mark.parametrize("block", first_quick(range(4), 1))
def test_what_validation_accepts_never_fails_in_another_way(block):
    ran = 0
    for seed in range(block * 60, block * 60 + 60):
        rng = random.Random(seed)
        case = random_program(rng)
        for _ in range(4):
            program = mutated(case.program, rng)
            if any(issue.severity == "error" for issue in validate(program, Capabilities.everything())):
                continue
            for engine in ("numpy", "scalar"):
                outcome(case, program, engine)
                ran += 1
    assert ran > 40  # the changes are gentle enough that many programs stay valid
