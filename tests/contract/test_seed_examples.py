"""The worked examples that describe the system, as a user would type them in Python."""

import struct

import numpy as np
import pytest

import vyre
from vyre import BackendCapability, DispatchConfig, In, Out, VyreBackend, VyreError, f32, gid
from vyre.backends.reference import run
from vyre.driver.contract import BackendRegistration
from vyre.driver.guard import compile as pipeline
from vyre.driver.selection.registry import isolated
from vyre.driver.verify import shadow
from vyre.foundation.ir.dtypes import u32
from vyre.foundation.ir.nodes import Call, Store, lit
from vyre.foundation.ir.program import Program, write_only


@vyre.kernel(workgroup=64)
def saxpy(alpha: f32, x: In[f32], y: In[f32], out: Out[f32]):
    i = gid.x
    if i < len(out):
        out[i] = alpha * x[i] + y[i]


X, Y = np.arange(100, dtype=np.float32), np.ones(100, np.float32)
INPUTS = [np.float32(2), X, Y]
EXPECTED = (2 * X + Y).tobytes()


class MyBackend(VyreBackend, contract=1):
    """A backend from elsewhere: `dispatch` reaches its machine, the record says what the machine has."""

    id = "my-backend"
    version = "3.1.4"

    def __init__(self, machine):
        self.machine = machine
        self.capability = BackendCapability(
            subgroup_ops=machine["warp_ops"],
            f16=machine["f16"],
            tensor_cores=machine["tensor_cores"],
            async_compute=True,
            indirect_dispatch=True,
            max_workgroup_size=machine["max_workgroup"],
            max_workgroups_per_dimension=65535,
            max_storage_buffer_bytes=machine["max_buffer"],
        )
        self.state = "cold"

    def dispatch(self, program, inputs, config=DispatchConfig(), *, out=None):  # noqa: B008 - as the contract has it
        if self.machine["lost"]:
            raise vyre.DispatchFailed("the launch failed", fix="reset the machine", backend=self.id)
        grid = config.grid_override or (2, 1, 1)
        results = run(program, inputs, grid=grid, output_elements=config.output_elements).outputs
        if out is None:
            return results
        for target, data in zip(out, results, strict=True):
            memoryview(target).cast("B")[:] = data
        return list(out)

    def prepare(self):
        self.state = "warm"

    def flush(self):
        self.state = "idle"

    def shutdown(self):
        self.state = "gone"

    def device_lost(self):
        return self.machine["lost"]


MACHINE = {
    "warp_ops": True, "f16": True, "tensor_cores": False, "max_workgroup": (1024, 1024, 64), "max_buffer": 1 << 32,
    "lost": False,
}  # fmt: skip
MINE = BackendRegistration(id="my-backend", precedence=1, open=lambda device=None: MyBackend(dict(MACHINE)))


# ---- the three examples of the overview -----------------------------------------------------------------------------


def test_pick_the_best_available_backend_and_dispatch():
    def run_preferred(program, inputs):
        backend = vyre.acquire_preferred_dispatch_backend()
        return backend.dispatch(program, inputs)

    with isolated(MINE):
        assert run_preferred(saxpy.program, INPUTS) == [EXPECTED]


def test_gate_a_feature_on_what_backends_run():
    def can_run(program):
        ops = vyre.core_supported_ops()
        return any(all(op in ops for op in program.ops()) for _ in vyre.registered_backends())

    unregistered = Program([write_only("out", 0, u32)], (1, 1, 1), [Store("out", lit(0), Call("nobody.knows", ()))])
    assert can_run(saxpy.program)
    assert not can_run(unregistered)
    with isolated():
        assert not can_run(saxpy.program)


def test_compile_for_two_backends_and_compare():
    def compile_with_shadow(primary, reference, program):
        main = pipeline.compile(primary, program)
        return shadow.ShadowedPipeline(main, pipeline.compile(reference, program))

    with isolated(MINE):
        shadowed = compile_with_shadow(vyre.acquire("my-backend"), REFERENCE(), saxpy.program)
        assert shadowed.main.id.startswith("my-backend:")
        assert shadowed.reference.id.startswith("reference:")
        assert shadowed.dispatch(INPUTS) == [EXPECTED]
        assert (shadowed.shadow.samples, shadowed.shadow.divergences) == (1, 0)


def test_the_shadow_finds_what_the_reference_would_not_have_given():
    class Careless(MyBackend):
        def dispatch(self, program, inputs, config=DispatchConfig(), *, out=None):  # noqa: B008
            (result,) = super().dispatch(program, inputs, config)
            return [bytes(result[:4]) + b"\x01" + bytes(result[5:])]

    main = pipeline.compile(Careless(dict(MACHINE)), saxpy.program)
    shadowed = shadow.ShadowedPipeline(main, pipeline.compile(REFERENCE(), saxpy.program))
    with pytest.raises(shadow.Diverged, match=r"\[element=1\] \[expected='3.0 \(0x40400000\)'\]"):
        shadowed.dispatch(INPUTS)


def REFERENCE():  # noqa: N802
    from vyre.backends.reference import REGISTRATION

    return REGISTRATION.open()


# ---- the example of the contract ------------------------------------------------------------------------------------


def test_my_backend_needs_nothing_else():
    backend = MyBackend(dict(MACHINE))
    assert (backend.id, backend.version, backend.state) == ("my-backend", "3.1.4", "cold")
    with backend:
        assert backend.state == "warm"
        assert backend.dispatch(saxpy.program, INPUTS) == [EXPECTED]
    assert backend.state == "gone"


def test_my_backend_reports_what_its_machine_has():
    backend = MyBackend(dict(MACHINE))
    assert backend.supports_subgroup_ops
    assert backend.supports_f16
    assert not backend.supports_tensor_cores
    assert backend.supports_async_compute
    assert backend.supports_indirect_dispatch
    assert not backend.supports_bf16
    assert backend.max_workgroup_size == (1024, 1024, 64)
    assert backend.max_storage_buffer_bytes == 1 << 32
    assert backend.device_profile().backend == "my-backend"


def test_my_backend_says_when_its_machine_is_gone():
    backend = MyBackend(MACHINE | {"lost": True})
    assert backend.device_lost()
    with pytest.raises(VyreError, match=r"the launch failed .*Fix: reset the machine"):
        backend.dispatch(saxpy.program, INPUTS)


def test_my_backend_is_found_selected_and_compiled_for_without_a_change_to_the_driver():
    out = bytearray(len(EXPECTED))
    with isolated(MINE):
        assert [r.id for r in vyre.registered_backends()] == ["my-backend"]
        assert vyre.select(saxpy.program).chosen == "my-backend"
        with vyre.compile(saxpy.program, backend="my-backend") as compiled:
            (same,) = compiled.dispatch(INPUTS, out=[out])
    assert same is out
    assert struct.unpack_from("<f", out, 4) == (3.0,)
