"""Random sequences of random programs, and the ways in which they can run."""

import random
from collections.abc import Mapping

import numpy as np

import vyre
from vyre import In, Out, gid, u32
from vyre.conform.programs.random import random_program
from vyre.conform.programs.random_values import random_bytes
from vyre.foundation.ir.dtypes import bool_
from vyre.front.arrays import ARRAY_DTYPES


def array_of(data, element):
    """The elements of an input, as a caller has them."""
    if element == bool_:
        return np.frombuffer(data, np.uint32) != 0
    return np.frombuffer(data, ARRAY_DTYPES[element.name]).copy()


class RandomSequence:
    """A few random programs over each other's results. `arrays(seed)` are inputs; `run` is the function."""

    def __init__(self, seed, length):
        rng = random.Random(seed)
        self._seed = seed
        self._steps = []
        self._lengths = []
        while len(self._steps) < length:
            case = random_program(
                rng, wide=False, endless=False, functions=rng.random() < 0.2, max_statements=rng.randint(2, 8)
            )
            if any(b.output_byte_range is not None for b in case.program.host_outputs):
                continue  # which device arrays cannot show
            kernel = vyre.Kernel.of_program(case.program, f"step{len(self._steps)}")
            given = dict(zip((b.name for b in case.program.host_inputs), case.inputs, strict=True))
            numbers = {p.name: array_of(given[p.name], p.element)[0] for p in kernel.params if p.role == "scalar"}
            sized = {p.name: len(given[p.name]) for p in kernel.params if p.role not in ("out", "scalar")}
            config = vyre.DispatchConfig(grid_override=case.grid, output_elements=case.output_elements or None)
            outs = vyre.compile(case.program, backend="cpu").dispatch(list(case.inputs), config)
            sizes = {
                b.name: memoryview(out).nbytes // (b.element.size or 4)
                for b, out in zip(case.program.host_outputs, outs, strict=True)
                if not b.count and b.name not in given
            }
            self._steps.append((kernel, case, numbers, sized, sizes))
            self._lengths += [(p.element, sized[p.name]) for p in kernel.params if p.name in sized]

    def __len__(self):
        return len(self._steps)

    def arrays(self, seed):
        rng = random.Random(seed)
        return [array_of(random_bytes(rng, t, n // max(1, t.size or 4)), t) for t, n in self._lengths]

    def run(self, arrays, start=0, stop=None, call=None):
        """Those steps over a pool of arrays, which their results join. `call` is how a kernel is called."""
        call = call or (lambda kernel, inputs, options: kernel(**inputs, **options))
        pool = list(arrays)
        for at, (kernel, case, numbers, sized, sizes) in enumerate(self._steps[start:stop], start):
            rng, written = random.Random(f"{self._seed}:{at}"), []
            inputs: dict[str, object] = dict(numbers)
            for p in kernel.params:
                if p.name not in sized:
                    continue
                dtype, nbytes = ARRAY_DTYPES[p.element.name], sized[p.name]
                length = nbytes // (4 if dtype.char == "?" else dtype.itemsize)
                fits = [
                    a
                    for a in pool
                    if a.dtype == dtype
                    and ((p.role == "in" and not p.count) or a.size == length)
                    and not (p.role == "inout" and any(a is w for w in written))
                ]
                inputs[p.name] = chosen = rng.choice(fits)
                if p.role == "inout":
                    written.append(chosen)
            found = call(kernel, inputs, {"grid": case.grid, "sizes": sizes})
            outs = found if isinstance(found, tuple) else (found,)
            pool += [o for o in outs if o is not None and not any(o is a for a in pool)]
        return pool


class Arms:
    """Two such sequences, whose steps take turns and know nothing of each other."""

    def __init__(self, seed, length):
        self._arms = [RandomSequence(seed, length), RandomSequence(seed + 100_000, length)]

    def __len__(self):
        return len(self._arms[0])

    def arrays(self, seed):
        return [arm.arrays(seed + k) for k, arm in enumerate(self._arms)]

    def run(self, pools, start=0, stop=None, call=None):
        pools = list(pools)
        for at in range(start, len(self) if stop is None else stop):
            for k, arm in enumerate(self._arms):
                pools[k] = arm.run(pools[k], at, at + 1, call)
        return pools


@vyre.kernel(workgroup=64, lengths={"kept": "n"})
def first_of(x: In[u32], count: u32, kept: Out[u32], n: Out[u32, 1]):
    if gid.x < len(kept):
        kept[gid.x] = x[gid.x] ^ 0x5A5A
    if gid.x == 0:
        n[0] = count


def compacted(pool, call=None):
    """The arrays, and of some a result that says how long it is."""
    call = call or (lambda kernel, inputs, options: kernel(**inputs, **options))
    found = list(pool)
    for k, array in enumerate(pool):
        if isinstance(array, list):
            found[k] = compacted(array, call)
        elif array.dtype == np.uint32 and array.ndim == 1 and array.size:
            found += call(first_of, {"x": array, "count": k}, {})
    return found


def flat(pool):
    """The arrays of one sequence, or of several arms."""
    return [a for each in pool for a in (each if isinstance(each, list) else [each])]


def overlapped(kernel, inputs, options):
    """A call as a stream of one, on its way while nothing else is."""
    order = [p.name for p in kernel.params if p.name in inputs]
    (found,) = kernel.map(*([inputs[name]] for name in order), in_flight=2, **options)
    return found


def on(name, call=None):
    """Kernels on this backend."""
    call = call or (lambda kernel, inputs, options: kernel(**inputs, **options))
    return lambda kernel, inputs, options: call(kernel.on(name), inputs, options)


def ways(sequence: RandomSequence | Arms, name: str, cut: int) -> Mapping[str, object]:
    """Name -> a function of arrays of the host that gives those of the host, with what was updated in place."""

    def back(pool):
        return [back(a) if isinstance(a, list) else a if isinstance(a, np.ndarray) else a.numpy() for a in pool]

    def to(arrays):
        return [to(a) if isinstance(a, list) else vyre.to_device(a, name) for a in arrays]

    def function(arrays, start=0, stop=None):
        return sequence.run(arrays, start, stop)

    def counted(arrays, start=0, stop=None):
        return compacted(function(arrays, start, stop))

    recorded, first, rest = vyre.sequence(function), vyre.sequence(function), vyre.sequence(function)
    whole, last = vyre.sequence(counted), vyre.sequence(counted)
    return {
        "device arrays": lambda arrays: back(sequence.run(to(arrays))),
        "recorded": lambda arrays: recorded.on(name)(arrays),
        "recorded, device arrays": lambda arrays: back(recorded(to(arrays))),
        "overlapped": lambda arrays: sequence.run(arrays, call=on(name, overlapped)),
        "recorded, split": lambda arrays: back(rest(first(to(arrays), 0, cut), cut)),
        "recorded, then host": lambda arrays: sequence.run(back(first(to(arrays), 0, cut)), cut, call=on(name)),
        "overlapped, then recorded": lambda arrays: back(
            rest(to(sequence.run(arrays, 0, cut, on(name, overlapped))), cut)
        ),
        "compacted": lambda arrays: compacted(sequence.run(arrays, call=on(name)), on(name)),
        "recorded, compacted": lambda arrays: whole.on(name)(arrays),
        "overlapped, compacted": lambda arrays: compacted(
            sequence.run(arrays, call=on(name, overlapped)), on(name, overlapped)
        ),
        "split, compacted": lambda arrays: last.on(name)(back(first(to(arrays), 0, cut)), cut),
        "recorded, then overlapped": lambda arrays: sequence.run(
            first.on(name)(arrays, 0, cut), cut, call=on(name, overlapped)
        ),
    }
