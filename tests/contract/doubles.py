"""Two backends that run nothing real: one with every default, one that overrides all there is to override."""

import threading
import time
from collections import Counter

from vyre.driver.contract import BackendCapability, CompiledPipeline, FuturePending, ReadyPending, VyreBackend
from vyre.driver.contract.profile import DeviceProfile
from vyre.driver.contract.values import DEFAULT_CONFIG, ResidentOwner, ResidentSequenceTiming, TimedDispatchResult
from vyre.errors import DeadlineExceeded, DeviceOutOfMemory


def echo(inputs, out=None):
    """Inputs as outputs, in fresh memory or in `out`."""
    if out is None:
        return [bytearray(memoryview(data)) for data in inputs]
    for target, data in zip(out, inputs, strict=True):
        memoryview(target)[:] = data
    return list(out)


class MockBackend(VyreBackend, contract=1):
    """Only what is required: an id, and a dispatch that echoes."""

    id = "mock"

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        return echo(inputs, out)


FULL = BackendCapability(
    ops=frozenset(("vyre.node.return", "vyre.node.region", "vyre.node.trap")),
    api="Signals",
    memory_model="sequential",
    types=frozenset(("f16", "u64")),
    subgroup_ops=True,
    subgroup_size=32,
    f16=True,
    bf16=True,
    tensor_cores=True,
    async_compute=True,
    indirect_dispatch=True,
    grid_sync=True,
    speculation=True,
    prints=True,
    persistent_threads=True,
    distributed=True,
    distributed_collectives=True,
    host_grid_sync_split=False,
    max_workgroup_size=(256, 128, 64),
    max_workgroups_per_dimension=65535,
    max_invocations_per_workgroup=512,
    max_shared_bytes=48 << 10,
    max_storage_buffer_bytes=1 << 30,
    max_steps=100_000,
    deadline="host",
    exactness={"f32": "canonical"},
    extras={"color": "green"},
)


class FullPipeline(CompiledPipeline):
    backend_id = "full"

    def __init__(self, backend, program):
        self.id = f"full:{program.fingerprint[:8]}"
        self.backend, self.calls = backend, backend.calls

    def dispatch(self, inputs, config=None, *, out=None):
        self.calls["pipeline.dispatch"] += 1
        return self.backend.run(inputs, out, config)

    def dispatch_timed(self, inputs, config=None, *, out=None):
        self.calls["pipeline.dispatch_timed"] += 1
        return TimedDispatchResult(self.backend.run(inputs, out, config), 9, 5, 1, 3)

    def dispatch_async(self, inputs, config=None, *, out=None):
        self.calls["pipeline.dispatch_async"] += 1
        return self.backend.start(inputs, out, config)

    def dispatch_batch(self, batches, config=None, *, out=None):
        self.calls["pipeline.dispatch_batch"] += 1
        return [self.backend.run(inputs, None, config) for inputs in batches]

    def dispatch_resident(self, resources, config=None):
        self.calls["pipeline.dispatch_resident"] += 1
        self.backend.touch()
        return list(resources)

    def close(self):
        self.calls["pipeline.close"] += 1


class FullBackend(VyreBackend, contract=1):
    """Overrides every member that may be overridden, counts the calls, and breaks on demand."""

    id = "full"
    version = "9.8.7"
    device = "full 0"
    capability = FULL

    def __init__(self):
        self.calls = Counter()
        self.owner = ResidentOwner(self.id)
        self.memory = {}
        self.lost = False
        self._full = self._wrong = False
        self._hangs_until = 0.0
        self._free = threading.Event()

    # -- faults

    def lose(self):
        """The device is gone. As real ones do, everything then claims to be out of memory."""
        self.lost = True

    def hang(self, seconds=60.0):
        """Kernels run for so long. A timeout ends the call, and then the device is lost, unless nobody keeps time."""
        self._free.clear()
        self._hangs_until = time.monotonic() + seconds

    def unhang(self):
        """Kernels that hang end, and others do not hang any more."""
        self._hangs_until = 0.0
        self._free.set()

    @property
    def hangs(self):
        return self._hangs_until > time.monotonic()

    def oom(self):
        """The next dispatch finds no memory, on a device that is well."""
        self._full = True

    def wrong_bytes(self):
        """The next dispatch gives a wrong byte."""
        self._wrong = True

    def touch(self):
        if self.lost or self._full:
            self._full = False
            raise DeviceOutOfMemory("no memory on the device", fix="free some")

    def run(self, inputs, out, config):
        """A kernel: it hangs, fails or lies if it is to, and else echoes."""
        self.touch()
        end = None
        if config is not None and config.timeout is not None and self.deadline != "none":
            end = time.monotonic() + config.timeout
        while (left := self._hangs_until - time.monotonic()) > 0:
            if self._free.wait(min(left, 0.01)):
                break
            if end is not None and time.monotonic() >= end:
                self.lost = True
                raise DeadlineExceeded("the kernel did not end in time", fix="allow more time")
        self.touch()
        results = echo(inputs, out)
        if self._wrong:
            self._wrong = False
            memoryview(results[0]).cast("B")[0] ^= 1
        return results

    def start(self, inputs, out, config):
        """A kernel on a thread of its own."""
        if not self.hangs:
            return ReadyPending(self.run(inputs, out, config))
        from concurrent.futures import Future

        future, given = Future(), echo(inputs)

        def work():
            try:
                future.set_result(self.run(given, out, config))
            except Exception as e:
                future.set_exception(e)

        threading.Thread(target=work, daemon=True).start()
        return FuturePending(future)

    # -- the contract

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        self.calls["dispatch"] += 1
        return self.run(inputs, out, config)

    def supported_ops(self):
        self.calls["supported_ops"] += 1
        return self.capability.ops

    def dispatch_borrowed(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        self.calls["dispatch_borrowed"] += 1
        return list(inputs)

    def dispatch_timed(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        self.calls["dispatch_timed"] += 1
        return TimedDispatchResult(echo(inputs, out), 9, 5, 1, 3)

    def dispatch_async(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        from concurrent.futures import Future

        self.calls["dispatch_async"] += 1
        done = Future()
        done.set_result(echo(inputs, out))
        return FuturePending(done)

    def compile_native(self, program, config):
        self.calls["compile_native"] += 1
        return FullPipeline(self, program)

    def allocate_resident(self, nbytes):
        self.calls["allocate_resident"] += 1
        self.touch()
        handle = self.owner.handle(len(self.memory) + 1, nbytes)
        self.memory[handle.id] = bytearray(nbytes)
        return handle

    def upload_resident(self, ranges):
        self.calls["upload_resident"] += 1
        self.touch()
        for handle, offset, data in ranges:
            self._at(handle, "upload")[offset : offset + len(data)] = data

    def download_resident(self, ranges, *, out=None):
        self.calls["download_resident"] += 1
        self.touch()
        views = [self._at(r.resource, "download")[r.byte_offset : r.byte_offset + r.byte_len] for r in ranges]
        return echo(views, out)

    def free_resident(self, resource):
        self.calls["free_resident"] += 1
        self.touch()
        self._at(resource, "free")
        del self.memory[resource.id]

    def dispatch_resident(self, steps, *, reads=(), repeat=1, timed=False):
        self.calls["dispatch_resident"] += 1
        return self.download_resident(reads), ResidentSequenceTiming(1, 1, 0, 0) if timed else None

    def exchange(self):
        self.calls["exchange"] += 1
        self.touch()

    def prepare(self):
        self.calls["prepare"] += 1

    def flush(self):
        self.calls["flush"] += 1

    def shutdown(self):
        self.calls["shutdown"] += 1

    def device_lost(self):
        self.calls["device_lost"] += 1
        return self.lost

    def try_recover(self):
        self.calls["try_recover"] += 1
        self.lost = False
        self.memory = {}
        self.unhang()

    def device_profile(self):
        self.calls["device_profile"] += 1
        return DeviceProfile(backend=self.id, compute_units=132)

    def metrics(self):
        self.calls["metrics"] += 1
        return {"launches": 7}

    def pipeline_cache_snapshot(self):
        from vyre.driver.pipeline import PipelineCacheSnapshot

        self.calls["pipeline_cache_snapshot"] += 1
        return PipelineCacheSnapshot(hits=3, misses=4)

    def _at(self, handle, context):
        return self.memory[self.owner.resolve(handle, context)]
