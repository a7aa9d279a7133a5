"""Functions that a WGSL kernel calls: each computes exactly what WGSL leaves to the device.

Types are those of registers: f32 is `u32` (its bits), u64 and i64 are `vec2<u32>` (low word, high word): F and W below.
A name is that of the instruction and of the type it works on; `called(item)` is the name to call, or None where WGSL's
own operator (or a plain copy of the bits) is right. Where signs do not matter, an i64 goes to the u64 function.
`functions(names, traits)` is the text of these functions and of those they call. Fenced ones read `params.z0` and
`params.z1`. Nothing here loops: some devices count the turns of a kernel.

    f32     add sub mul div min max copysign (F, F) -> F        add_f32(a, b) ...
            fma (F, F, F) -> F
            sqrt neg abs floor ceil trunc flush quiet (F) -> F
            eq ne lt le gt ge (F, F) -> bool
            select (bool, F, F) -> F                            the first where it is true; also for all below
            round_f16 round_bf16 (F) -> F                       no type in their names
            load_f16 load_bf16 (u32) -> F                       the value of 16 bits (a subnormal bf16 is left as it is)
            store_f16 store_bf16 (F) -> u32                     16 bits of a value of that type; f16 NaN is 0x7E00
    u64 i64 add sub mul div rem min max (W, W) -> W             div and rem: divisor legal
            shl shr (W, count W) -> W                           counts below 64
            popcount clz ctz bitrev (W) -> W
            eq ne lt le gt ge (W, W) -> bool
    u32     mulhi (u32, u32) -> u32
    i32     rem (i32, i32) -> i32                               divisor legal
            popcount clz ctz bitrev (i32) -> i32
    narrow  narrow_u8 narrow_u16 (u32) -> u32, narrow_i8 narrow_i16 (i32) -> i32
    convert convert_<from>_<to>, for all pairs of bool u32 i32 u64 i64 f32 of which the bits differ, except to bool

A float result is canonical, except that a NaN may have any payload. With `soft_flush` + - * / fma flush what the device
gives, and take no subnormal operands; else the device flushes, and reads them as zero. Steps in integers read subnormal
operands as zero. They use native division and roots as estimates, which may be off by 4 units in the last place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from ....lower.instructions import COMPARES
from ....lower.kernel_ir import Ins
from . import float_functions as floats
from . import word_functions as words
from .traits import SAFEST, Traits


def called(item: Ins) -> str | None:
    """The function that computes a pure instruction, if there is one."""
    types = item.dtype
    if item.op == "convert":
        types = f"{item.args[0].dtype}_{item.dtype}"
    elif item.op in COMPARES:
        types = item.args[0].dtype
    elif item.op == "narrow":
        types = item.attr
    for name in (item.op, f"{item.op}_{types}", f"{item.op}_{types.replace('i64', 'u64')}"):
        if name in _NAMES:
            return name
    return None


def functions(names: Iterable[str], traits: Traits) -> str:
    """The text of these functions and all that they call, in a fixed order."""
    library = _library(traits)
    wanted, unvisited = set[str](), list(names)
    while unvisited:
        name = unvisited.pop()
        if name not in wanted:
            wanted.add(name)
            unvisited.extend(word for word in re.findall(r"\w+(?=\()", library[name]) if word in library)
    return "\n".join(text for name, text in library.items() if name in wanted)


@lru_cache(maxsize=8)
def _library(traits: Traits) -> dict[str, str]:
    """Every function by name."""
    flushed = traits.soft_flush
    native_fma = floats.FLUSHED_FMA if flushed else floats.NATIVE_FMA
    texts = [
        floats.FENCED if traits.fences else floats.PLAIN,
        floats.FLUSHED_ARITHMETIC if flushed else floats.ARITHMETIC,
        (floats.FLUSHED_DIVIDE if flushed else floats.NATIVE_DIVIDE) if traits.native_divide else floats.DIVIDE,
        floats.NATIVE_ROOT if traits.native_root else floats.ROOT,
        native_fma if traits.native_fma else floats.WIDE_FMA if traits.wide_fma else floats.FMA,
        floats.FLOATS,
        floats.FLOAT_CONVERSIONS,
        floats.HALVES,
        words.WORDS,
        words.PAIRS,
        words.PAIR_DIVISION,
        words.PAIR_CONVERSIONS,
    ]
    text = _written_out("".join(texts), floats.IN_PLACE | floats.OPERANDS[traits.fences])
    return {m[1]: m[0] for m in re.finditer(r"^fn (\w+).*?^\}$", text, re.MULTILINE | re.DOTALL)}


def _written_out(text: str, meanings: Mapping[str, str]) -> str:
    """A text with expressions for the words that stand for them, each of their operand."""

    def meaning(found: re.Match[str]) -> str:
        return re.sub(r"\bx\b", found[2] or "x", meanings[found[1]])

    return re.sub(rf"\b({'|'.join(meanings)})\b(?:\((\w+)\))?", meaning, text)


_NAMES = frozenset(_library(SAFEST))
