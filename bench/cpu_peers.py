"""What the peers do with the rows of bench/cpu.py, each as its own documentation would write it.

`contenders(row, data)` gives one prepared call per peer that is installed: compiled, with its outputs allocated, and
checked by nobody but the row's own check, which every result passes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import cpu_taichi
import numpy as np

Call = Callable[[], Any]
"""Runs once and returns what can be checked."""


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def contenders(row: str, data: dict[str, Any]) -> dict[str, Call]:
    found: dict[str, Call] = {}
    for peer, rows in PEERS.items():
        if row not in rows or not installed(PACKAGE.get(peer, peer)):
            continue
        try:
            call = rows[row](data)
            call()  # compiles
        except Exception as e:  # a peer that does not run here is left out, and said so
            print(f"{peer} does not run {row} here: {type(e).__name__}: {str(e)[:120]}")
        else:
            found[peer] = call
    return found


# ---- numpy ----------------------------------------------------------------------------------------------------------


def _numpy_xor(d: dict[str, Any]) -> Call:
    out = np.empty_like(d["a"])
    return lambda: np.bitwise_xor(d["a"], d["b"], out=out)


def _numpy_saxpy(d: dict[str, Any]) -> Call:
    out = np.empty_like(d["x"])

    def run() -> Any:
        np.multiply(d["x"], d["alpha"], out=out)
        return np.add(out, d["y"], out=out)

    return run


def _numpy_scan(d: dict[str, Any]) -> Call:
    out = np.empty_like(d["x"])
    return lambda: np.cumsum(d["x"], dtype=np.uint32, out=out)


def _numpy_chain(d: dict[str, Any]) -> Call:
    a, b = np.empty_like(d["x"]), np.empty_like(d["x"])

    def run() -> Any:
        np.multiply(d["x"], np.float32(1.5), out=a)
        np.add(a, d["y"], out=a)
        np.subtract(d["y"], np.float32(0.25), out=b)
        np.multiply(a, b, out=a)
        np.add(a, np.float32(3.0), out=a)
        np.minimum(a, np.float32(100.0), out=a)
        np.maximum(a, np.float32(-100.0), out=a)
        np.multiply(a, a, out=b)
        np.subtract(a, b, out=a)
        return np.add(a, np.float32(0.5), out=a)

    return run


def _numpy_cdf(d: np.ndarray) -> np.ndarray:
    f = np.float32
    k = f(1) / (f(1) + f(0.2316419) * np.abs(d))
    p = k * (f(0.31938153) + k * (f(-0.356563782) + k * (f(1.781477937) + k * (f(-1.821255978) + k * f(1.330274429)))))
    tail = f(0.39894228) * np.exp(f(-0.5) * d * d) * p
    return np.where(d > 0, f(1) - tail, tail)


def _numpy_black_scholes(d: dict[str, Any]) -> Call:
    f = np.float32
    rate, volatility = f(d["rate"]), f(d["volatility"])

    def run() -> Any:
        s, x, t = d["price"], d["strike"], d["years"]
        root = np.sqrt(t)
        d1 = (np.log(s / x) + (rate + f(0.5) * volatility * volatility) * t) / (volatility * root)
        d2 = d1 - volatility * root
        c1, c2 = _numpy_cdf(d1), _numpy_cdf(d2)
        discounted = x * np.exp(-rate * t)
        return s * c1 - discounted * c2, discounted * (f(1) - c2) - s * (f(1) - c1)

    return run


def _numpy_small(d: dict[str, Any]) -> Call:
    out = np.empty_like(d["a"])
    return lambda: np.bitwise_xor(d["a"], d["b"], out=out)


_NUMPY: dict[str, Callable[[dict[str, Any]], Call]] = {
    "xor": _numpy_xor,
    "saxpy": _numpy_saxpy,
    "sum": lambda d: lambda: np.sum(d["x"]),
    "scan": _numpy_scan,
    "histogram": lambda d: lambda: np.bincount(d["data"], minlength=256),
    "chain": _numpy_chain,
    "black_scholes": _numpy_black_scholes,
    "small": _numpy_small,
}


# ---- numexpr --------------------------------------------------------------------------------------------------------


def _numexpr(expression: str) -> Callable[[dict[str, Any]], Call]:
    def prepare(d: dict[str, Any]) -> Call:
        import numexpr

        numexpr.set_num_threads(numexpr.detect_number_of_cores())
        names = {k: v for k, v in d.items() if isinstance(v, np.ndarray | np.generic)}
        names |= {k: np.float32(v) for k, v in d.items() if isinstance(v, float)}
        first = next(iter(names.values()))
        out = np.empty_like(first)
        return lambda: numexpr.evaluate(expression, local_dict=names, out=out, casting="unsafe")

    return prepare


_NUMEXPR = {
    "xor": _numexpr("a ^ b"),
    "saxpy": _numexpr("alpha * x + y"),
}


# ---- numba ----------------------------------------------------------------------------------------------------------


def _numba_elementwise(d: dict[str, Any], body: Callable[..., None], *names: str) -> Call:
    import numba

    run = numba.njit(parallel=True)(body)
    arrays = [d[n] for n in names]
    out = np.empty_like(next(a for a in arrays if isinstance(a, np.ndarray)))

    def call() -> Any:
        run(*arrays, out)
        return out

    return call


def _numba_xor(d: dict[str, Any]) -> Call:
    import numba

    def body(a, b, out):  # type: ignore[no-untyped-def]
        for i in numba.prange(out.size):
            out[i] = a[i] ^ b[i]

    return _numba_elementwise(d, body, "a", "b")


def _numba_saxpy(d: dict[str, Any]) -> Call:
    import numba

    def body(alpha, x, y, out):  # type: ignore[no-untyped-def]
        for i in numba.prange(out.size):
            out[i] = alpha * x[i] + y[i]

    return _numba_elementwise({**d, "alpha": np.float32(d["alpha"])}, body, "alpha", "x", "y")


def _numba_sum(d: dict[str, Any]) -> Call:
    import numba

    @numba.njit(parallel=True, fastmath=True)
    def run(x):  # type: ignore[no-untyped-def]
        total = np.float32(0)
        for i in numba.prange(x.size):
            total += x[i]
        return total

    return lambda: run(d["x"])


def _numba_scan(d: dict[str, Any]) -> Call:
    import numba

    @numba.njit
    def run(x, out):  # type: ignore[no-untyped-def]
        total = np.uint32(0)
        for i in range(x.size):
            total += x[i]
            out[i] = total

    out = np.empty_like(d["x"])

    def call() -> Any:
        run(d["x"], out)
        return out

    return call


def _numba_scan_parallel(d: dict[str, Any]) -> Call:
    import numba

    @numba.njit(parallel=True)
    def run(x, totals, out):  # type: ignore[no-untyped-def]
        share = x.size // totals.size
        for k in numba.prange(totals.size):
            total = np.uint32(0)
            for i in range(k * share, (k + 1) * share):
                total += x[i]
            totals[k] = total
        for k in numba.prange(totals.size):
            total = np.uint32(0)
            for j in range(k):
                total += totals[j]
            for i in range(k * share, (k + 1) * share):
                total += x[i]
                out[i] = total

    out, totals = np.empty_like(d["x"]), np.empty(numba.get_num_threads(), np.uint32)

    def call() -> Any:
        run(d["x"], totals, out)
        return out

    return call


def _numba_histogram(d: dict[str, Any]) -> Call:
    import numba

    workers = numba.get_num_threads()

    @numba.njit(parallel=True)
    def run(data, parts, out):  # type: ignore[no-untyped-def]
        share = data.size // workers
        for w in numba.prange(workers):
            parts[w, :] = 0
            end = data.size if w == workers - 1 else (w + 1) * share
            for i in range(w * share, end):
                parts[w, data[i]] += 1
        for k in range(256):
            total = 0
            for w in range(workers):
                total += parts[w, k]
            out[k] = total

    parts, out = np.zeros((workers, 256), np.uint32), np.zeros(256, np.uint32)

    def call() -> Any:
        run(d["data"], parts, out)
        return out

    return call


def _numba_chain(d: dict[str, Any]) -> Call:
    import numba

    f = np.float32

    def body(x, y, out):  # type: ignore[no-untyped-def]
        for i in numba.prange(out.size):
            a = x[i] * f(1.5) + y[i]
            b = y[i] - f(0.25)
            a = a * b + f(3.0)
            a = max(min(a, f(100.0)), f(-100.0))
            b = a * a
            out[i] = a - b + f(0.5)

    return _numba_elementwise(d, body, "x", "y")


def _numba_matmul(d: dict[str, Any]) -> Call:
    import numba

    @numba.njit(parallel=True)
    def run(a, b, out):  # type: ignore[no-untyped-def]
        n = out.shape[0]
        for i in numba.prange(n):
            for j in range(n):
                out[i, j] = 0
            for k in range(n):
                x = a[i, k]
                for j in range(n):
                    out[i, j] += x * b[k, j]

    out = np.empty_like(d["a"])

    def call() -> Any:
        run(d["a"], d["b"], out)
        return out

    return call


def _numba_dfa(d: dict[str, Any]) -> Call:
    """Four streams per thread, interleaved, because one is bound by latency."""
    import numba

    @numba.njit(parallel=True)
    def run(text, table, share, out):  # type: ignore[no-untyped-def]
        for t in numba.prange(out.size // 4):
            base = t * 4 * share
            s0 = s1 = s2 = s3 = np.uint32(0)
            c0 = c1 = c2 = c3 = np.uint32(0)
            early = 64
            for i in range(-early, share):
                k = base + i
                if k >= 0:
                    s0 = table[(s0 & 0x7FFF) * 256 + text[k]]
                s1 = table[(s1 & 0x7FFF) * 256 + text[k + share]]
                s2 = table[(s2 & 0x7FFF) * 256 + text[k + 2 * share]]
                s3 = table[(s3 & 0x7FFF) * 256 + text[k + 3 * share]]
                if i >= 0:
                    c0 += s0 >> 15
                    c1 += s1 >> 15
                    c2 += s2 >> 15
                    c3 += s3 >> 15
            out[4 * t], out[4 * t + 1], out[4 * t + 2], out[4 * t + 3] = c0, c1, c2, c3

    lanes = 64
    out = np.zeros(lanes, np.uint32)

    def call() -> Any:
        run(d["text"], d["wide_table"], d["text"].size // lanes, out)
        return int(out.sum())

    return call


def _numba_black_scholes(d: dict[str, Any]) -> Call:
    import math

    import numba

    f = np.float32

    @numba.njit(inline="always")
    def cdf(x):  # type: ignore[no-untyped-def]
        k = f(1) / (f(1) + f(0.2316419) * abs(x))
        p = k * (
            f(0.31938153) + k * (f(-0.356563782) + k * (f(1.781477937) + k * (f(-1.821255978) + k * f(1.330274429))))
        )
        tail = f(0.39894228) * math.exp(f(-0.5) * x * x) * p
        return f(1) - tail if x > 0 else tail

    @numba.njit(parallel=True, fastmath=True)
    def run(price, strike, years, rate, volatility, call, put):  # type: ignore[no-untyped-def]
        for i in numba.prange(call.size):
            s, x, t = price[i], strike[i], years[i]
            root = math.sqrt(t)
            d1 = (math.log(s / x) + (rate + f(0.5) * volatility * volatility) * t) / (volatility * root)
            d2 = d1 - volatility * root
            c1, c2 = cdf(d1), cdf(d2)
            discounted = x * math.exp(-rate * t)
            call[i] = s * c1 - discounted * c2
            put[i] = discounted * (f(1) - c2) - s * (f(1) - c1)

    call, put = np.empty_like(d["price"]), np.empty_like(d["price"])

    def go() -> Any:
        run(d["price"], d["strike"], d["years"], f(d["rate"]), f(d["volatility"]), call, put)
        return call, put

    return go


def _numba_mandelbrot(d: dict[str, Any]) -> Call:
    import numba

    f = np.float32

    @numba.njit(parallel=True)
    def run(left, top, step, limit, out):  # type: ignore[no-untyped-def]
        for row in numba.prange(out.shape[0]):
            for column in range(out.shape[1]):
                a, b = left + f(column) * step, top + f(row) * step
                x = y = f(0)
                n = 0
                while n < limit:
                    xx, yy = x * x, y * y
                    if xx + yy > f(4):
                        break
                    y = f(2) * x * y + b
                    x = xx - yy + a
                    n += 1
                out[row, column] = n

    out = np.empty((d["height"], d["width"]), np.uint32)

    def call() -> Any:
        run(f(d["left"]), f(d["top"]), f(d["step"]), d["limit"], out)
        return out

    return call


_NUMBA = {
    "xor": _numba_xor,
    "saxpy": _numba_saxpy,
    "sum": _numba_sum,
    "scan": _numba_scan,
    "histogram": _numba_histogram,
    "chain": _numba_chain,
    "matmul": _numba_matmul,
    "dfa": _numba_dfa,
    "black_scholes": _numba_black_scholes,
    "mandelbrot": _numba_mandelbrot,
    "small": _numba_xor,
}


# ---- torch ----------------------------------------------------------------------------------------------------------


def _torch(prepare: Callable[[Any, dict[str, Any]], Call]) -> Callable[[dict[str, Any]], Call]:
    def with_tensors(d: dict[str, Any]) -> Call:
        import torch

        def tensor(a: Any) -> Any:
            if not isinstance(a, np.ndarray):
                return a
            return torch.from_numpy(a.view(np.int32) if a.dtype == np.uint32 else a)

        return prepare(torch, {k: tensor(v) for k, v in d.items()})

    return with_tensors


def _torch_cdf(torch: Any, d: Any) -> Any:
    k = 1.0 / (1.0 + 0.2316419 * torch.abs(d))
    p = k * (0.31938153 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429))))
    tail = 0.39894228 * torch.exp(-0.5 * d * d) * p
    return torch.where(d > 0, 1.0 - tail, tail)


def _torch_black_scholes(torch: Any, d: dict[str, Any]) -> Call:
    def run() -> Any:
        s, x, t, rate, volatility = d["price"], d["strike"], d["years"], d["rate"], d["volatility"]
        root = torch.sqrt(t)
        d1 = (torch.log(s / x) + (rate + 0.5 * volatility * volatility) * t) / (volatility * root)
        d2 = d1 - volatility * root
        c1, c2 = _torch_cdf(torch, d1), _torch_cdf(torch, d2)
        discounted = x * torch.exp(-rate * t)
        return (s * c1 - discounted * c2).numpy(), (discounted * (1.0 - c2) - s * (1.0 - c1)).numpy()

    return run


def _torch_chain(torch: Any, d: dict[str, Any]) -> Call:
    a, b = torch.empty_like(d["x"]), torch.empty_like(d["x"])

    def run() -> Any:
        torch.mul(d["x"], 1.5, out=a)
        a.add_(d["y"])
        torch.sub(d["y"], 0.25, out=b)
        a.mul_(b).add_(3.0).clamp_(-100.0, 100.0)
        torch.mul(a, a, out=b)
        return a.sub_(b).add_(0.5).numpy()

    return run


def _torch_out(function: str, *names: str) -> Callable[[dict[str, Any]], Call]:
    def prepare(torch: Any, d: dict[str, Any]) -> Call:
        out = torch.empty_like(d[names[0]])
        f, operands = getattr(torch, function), [d[n] for n in names]
        return lambda: f(*operands, out=out).numpy()

    return _torch(prepare)


def _torch_saxpy(torch: Any, d: dict[str, Any]) -> Call:
    out = torch.empty_like(d["x"])
    return lambda: torch.add(d["y"], d["x"], alpha=d["alpha"], out=out).numpy()


def _torch_scan(torch: Any, d: dict[str, Any]) -> Call:
    out = torch.empty_like(d["x"])
    return lambda: torch.cumsum(d["x"], 0, dtype=torch.int32, out=out).numpy().view(np.uint32)


_TORCH = {
    "xor": _torch_out("bitwise_xor", "a", "b"),
    "saxpy": _torch(_torch_saxpy),
    "sum": _torch(lambda torch, d: lambda: float(torch.sum(d["x"]))),
    "scan": _torch(_torch_scan),
    "histogram": _torch(lambda torch, d: lambda: torch.bincount(d["data"], minlength=256).numpy()),
    "chain": _torch(_torch_chain),
    "black_scholes": _torch(_torch_black_scholes),
    "small": _torch_out("bitwise_xor", "a", "b"),
}


# ---- jax ------------------------------------------------------------------------------------------------------------


def _jax(function: Callable[..., Any], *names: str) -> Callable[[dict[str, Any]], Call]:
    def prepare(d: dict[str, Any]) -> Call:
        import jax

        run = jax.jit(function)
        arguments = [jax.numpy.asarray(d[n]) for n in names]

        def call() -> Any:
            found = run(*arguments)
            jax.block_until_ready(found)
            return found

        return call

    return prepare


def _jax_black_scholes(s: Any, x: Any, t: Any, rate: Any, volatility: Any) -> Any:
    import jax.numpy as jnp

    def cdf(d: Any) -> Any:
        k = 1.0 / (1.0 + 0.2316419 * jnp.abs(d))
        p = k * (0.31938153 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429))))
        tail = 0.39894228 * jnp.exp(-0.5 * d * d) * p
        return jnp.where(d > 0, 1.0 - tail, tail)

    root = jnp.sqrt(t)
    d1 = (jnp.log(s / x) + (rate + 0.5 * volatility * volatility) * t) / (volatility * root)
    d2 = d1 - volatility * root
    c1, c2 = cdf(d1), cdf(d2)
    discounted = x * jnp.exp(-rate * t)
    return s * c1 - discounted * c2, discounted * (1.0 - c2) - s * (1.0 - c1)


def _jax_chain(x: Any, y: Any) -> Any:
    import jax.numpy as jnp

    a = x * 1.5 + y
    a = a * (y - 0.25) + 3.0
    a = jnp.maximum(jnp.minimum(a, 100.0), -100.0)
    return a - a * a + 0.5


_JAX = {
    "xor": _jax(lambda a, b: a ^ b, "a", "b"),
    "saxpy": _jax(lambda alpha, x, y: alpha * x + y, "alpha", "x", "y"),
    "sum": _jax(lambda x: x.sum(), "x"),
    "chain": _jax(_jax_chain, "x", "y"),
    "black_scholes": _jax(_jax_black_scholes, "price", "strike", "years", "rate", "volatility"),
    "small": _jax(lambda a, b: a ^ b, "a", "b"),
}


def _tinygrad_chain(x: Any, y: Any) -> Any:
    a = x * 1.5 + y
    a = (a * (y - 0.25) + 3.0).minimum(100.0).maximum(-100.0)
    return a - a * a + 0.5


# ---- tinygrad -------------------------------------------------------------------------------------------------------


def _tinygrad(function: Callable[..., Any], *names: str) -> Callable[[dict[str, Any]], Call]:
    """Compiled with the system's clang; results are fresh. A call may return before its work is done."""

    def prepare(d: dict[str, Any]) -> Call:
        from tinygrad import Device, Tensor, TinyJit

        tensors = [Tensor(d[n]).realize() if isinstance(d[n], np.ndarray) else d[n] for n in names]
        run = TinyJit(lambda: function(*tensors).realize())

        def call() -> Any:
            found = run()
            Device[Device.DEFAULT].synchronize()
            return found

        for _ in range(3):
            call()
        return call

    return prepare


_TINYGRAD = {
    "xor": _tinygrad(lambda a, b: a ^ b, "a", "b"),
    "saxpy": _tinygrad(lambda alpha, x, y: alpha * x + y, "alpha", "x", "y"),
    "sum": _tinygrad(lambda x: x.sum(), "x"),
    "chain": _tinygrad(_tinygrad_chain, "x", "y"),
}


# ---- text search ----------------------------------------------------------------------------------------------------


def _hyperscan(d: dict[str, Any]) -> Call:
    import hyperscan

    database = hyperscan.Database()
    patterns = d["patterns"]
    database.compile(expressions=patterns, ids=list(range(len(patterns))), elements=len(patterns))
    text = d["text"].tobytes()
    found = [0]

    def on_match(*_: Any) -> None:
        found[0] += 1

    def call() -> Any:
        found[0] = 0
        database.scan(text, match_event_handler=on_match)
        return found[0]

    return call


def _aho_corasick(d: dict[str, Any]) -> Call:
    import ahocorasick

    automaton = ahocorasick.Automaton()
    for k, pattern in enumerate(d["patterns"]):
        automaton.add_word(pattern.decode("latin-1"), k)
    automaton.make_automaton()
    text = d["text"].tobytes().decode("latin-1")
    return lambda: sum(1 for _ in automaton.iter(text))


PACKAGE = {"hyperscan": "hyperscan", "pyahocorasick": "ahocorasick", "numba parallel": "numba"}
PEERS: dict[str, dict[str, Callable[[dict[str, Any]], Call]]] = {
    "numpy": _NUMPY,
    "numexpr": _NUMEXPR,
    "numba": _NUMBA,
    "numba parallel": {"scan": _numba_scan_parallel},
    "torch": _TORCH,
    "jax": _JAX,
    "tinygrad": _TINYGRAD,
    "taichi": {row: cpu_taichi.contender(row) for row in cpu_taichi.ROWS},
    "hyperscan": {"dfa": _hyperscan},
    "pyahocorasick": {"dfa": _aho_corasick},
}
