"""Functions that a WGSL kernel calls: what WGSL leaves to the device, written so that nothing is left.

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

A float result is canonical, except that a NaN may have any payload, and that native + - * / fma give whatever the
device gives for tiny results: with `soft_flush` the lowering flushes these next. Steps in integers read subnormal
operands as zero and give canonical results in either case; the lowering's flush then changes nothing. They use native
division and roots as estimates, which may be off by 4 units in the last place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from ....lower.instructions import COMPARES
from ....lower.kernel_ir import Ins
from .traits import Traits


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
    library = _library(traits.fences, traits.native_divide, traits.native_root, traits.native_fma)
    wanted, unvisited = set[str](), list(names)
    while unvisited:
        name = unvisited.pop()
        if name not in wanted:
            wanted.add(name)
            unvisited.extend(word for word in re.findall(r"\w+(?=\()", library[name]) if word in library)
    return "\n".join(text for name, text in library.items() if name in wanted)


@cache
def _library(fences: bool, native_divide: bool, native_root: bool, native_fma: bool) -> dict[str, str]:
    """Every function by name."""
    texts = [
        _FENCED if fences else _PLAIN,
        _ARITHMETIC,
        _NATIVE_DIVIDE if native_divide else _DIVIDE,
        _NATIVE_ROOT if native_root else _ROOT,
        _NATIVE_FMA if native_fma else _FMA,
        _FLOATS,
        _FLOAT_CONVERSIONS,
        _HALVES,
        _WORDS,
        _PAIRS,
        _PAIR_DIVISION,
        _PAIR_CONVERSIONS,
    ]
    return {m[1]: m[0] for m in re.finditer(r"^fn (\w+).*?^\}$", "".join(texts), re.MULTILINE | re.DOTALL)}


# ---- float steps ----------------------------------------------------------------------------------------------------

# Two words, so that common subexpressions do not bring the operands together: `t - t` is not always 0. Comparisons
# are whole numbers here: a compiler that takes `!(a < b)` for `a >= b` forgets NaN, and no fence stands before the `!`.
# Mesa takes a choice between words that look like 0.0 and -1.0, or like -0.0 and 1.0, for the conversion of a bool, and
# gives the wrong zero; it also adds what is added later to both words first, so no choice may be between two words that
# it knows. What hides these is another zero than those of operands, and added: `x ^ z0 ^ z0` is `x` and hides nothing.
_FENCED = """\
fn select_u32(test: bool, a: u32, b: u32) -> u32 {
    return select(b, a + (params.z0 & params.z1), test);
}
fn select_i32(test: bool, a: i32, b: i32) -> i32 {
    return select(b, a + bitcast<i32>(params.z0 & params.z1), test);
}
fn select_f32(test: bool, a: u32, b: u32) -> u32 {
    return select(b, a + (params.z0 & params.z1), test);
}
fn select_u64(test: bool, a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(b, a + vec2<u32>(params.z0 & params.z1), test);
}
fn first_operand(x: u32) -> f32 {
    return bitcast<f32>(x ^ params.z0);
}
fn second_operand(x: u32) -> f32 {
    return bitcast<f32>(x ^ params.z1);
}
fn third_operand(x: u32) -> f32 {
    return bitcast<f32>(x ^ (params.z0 | params.z1));
}
fn order(x: u32) -> i32 {
    let size = bitcast<i32>(select(0u, x & 0x7FFFFFFFu, (x & 0x7F800000u) != 0u));
    return select(size, -size, (x >> 31u) != 0u);
}
fn is_ordered(a: u32, b: u32) -> bool {
    return max(a & 0x7FFFFFFFu, b & 0x7FFFFFFFu) <= 0x7F800000u;
}
fn eq_f32(a: u32, b: u32) -> bool {
    return is_ordered(a, b) && order(a) == order(b);
}
fn ne_f32(a: u32, b: u32) -> bool {
    return !is_ordered(a, b) || order(a) != order(b);
}
fn lt_f32(a: u32, b: u32) -> bool {
    return is_ordered(a, b) && order(a) < order(b);
}
fn le_f32(a: u32, b: u32) -> bool {
    return is_ordered(a, b) && order(a) <= order(b);
}
fn gt_f32(a: u32, b: u32) -> bool {
    return is_ordered(a, b) && order(a) > order(b);
}
fn ge_f32(a: u32, b: u32) -> bool {
    return is_ordered(a, b) && order(a) >= order(b);
}
"""

_PLAIN = """\
fn select_u32(test: bool, a: u32, b: u32) -> u32 {
    return select(b, a, test);
}
fn select_i32(test: bool, a: i32, b: i32) -> i32 {
    return select(b, a, test);
}
fn select_f32(test: bool, a: u32, b: u32) -> u32 {
    return select(b, a, test);
}
fn select_u64(test: bool, a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(b, a, test);
}
fn first_operand(x: u32) -> f32 {
    return bitcast<f32>(x);
}
fn second_operand(x: u32) -> f32 {
    return bitcast<f32>(x);
}
fn third_operand(x: u32) -> f32 {
    return bitcast<f32>(x);
}
fn eq_f32(a: u32, b: u32) -> bool {
    return bitcast<f32>(a) == bitcast<f32>(b);
}
fn ne_f32(a: u32, b: u32) -> bool {
    return !(bitcast<f32>(a) == bitcast<f32>(b));
}
fn lt_f32(a: u32, b: u32) -> bool {
    return bitcast<f32>(a) < bitcast<f32>(b);
}
fn le_f32(a: u32, b: u32) -> bool {
    return bitcast<f32>(a) <= bitcast<f32>(b);
}
fn gt_f32(a: u32, b: u32) -> bool {
    return bitcast<f32>(a) > bitcast<f32>(b);
}
fn ge_f32(a: u32, b: u32) -> bool {
    return bitcast<f32>(a) >= bitcast<f32>(b);
}
"""

_ARITHMETIC = """\
fn add_f32(a: u32, b: u32) -> u32 {
    return bitcast<u32>(first_operand(a) + second_operand(b));
}
fn sub_f32(a: u32, b: u32) -> u32 {
    return bitcast<u32>(first_operand(a) - second_operand(b));
}
fn mul_f32(a: u32, b: u32) -> u32 {
    return bitcast<u32>(first_operand(a) * second_operand(b));
}
"""

_NATIVE_DIVIDE = """\
fn div_f32(a: u32, b: u32) -> u32 {
    return bitcast<u32>(first_operand(a) / second_operand(b));
}
"""

_NATIVE_ROOT = """\
fn sqrt_f32(x: u32) -> u32 {
    return bitcast<u32>(sqrt(first_operand(x)));
}
"""

_NATIVE_FMA = """\
fn fma_f32(a: u32, b: u32, c: u32) -> u32 {
    return bitcast<u32>(fma(first_operand(a), second_operand(b), third_operand(c)));
}
"""

# The quotient of the significands in 25 bits, rounded down: an estimate, off by a few dozen at most, then corrected by
# its remainder, which fits a word although the product does not. Half of it, rounded up, is the quotient in 24 bits,
# for a quotient is never halfway between two of those: an odd 25-bit number times the divisor has too many bits for a
# dividend. The same holds for roots.
_DIVIDE = """\
fn div_f32(a: u32, b: u32) -> u32 {
    let sign = (a ^ b) & 0x80000000u;
    let ea = (a >> 23u) & 0xFFu;
    let eb = (b >> 23u) & 0xFFu;
    if (ea - 1u > 253u || eb - 1u > 253u) {
        let has_nan = max(a & 0x7FFFFFFFu, b & 0x7FFFFFFFu) > 0x7F800000u;
        if (has_nan || (ea == eb && (ea == 0u || ea == 255u))) {
            return 0x7FC00000u;
        }
        return sign | select(0u, 0x7F800000u, ea == 255u || eb == 0u);
    }
    let ma = (a & 0x7FFFFFu) | 0x800000u;
    let mb = (b & 0x7FFFFFu) | 0x800000u;
    let up = select(0u, 1u, ma < mb);
    let inverse = 1.0 / bitcast<f32>((b & 0x7FFFFFu) | 0x3F800000u);
    let guess = u32(bitcast<f32>((a & 0x7FFFFFu) | ((127u + up) << 23u)) * inverse * 16777216.0);
    var rest = bitcast<i32>((ma << (24u + up)) - guess * mb);
    let more = i32(floor(f32(rest) * inverse * 1.1920928955078125e-7));
    rest -= more * bitcast<i32>(mb);
    let last = select(select(0, 1, rest >= bitcast<i32>(mb)), -1, rest < 0);
    let quotient = guess + bitcast<u32>(more + last);
    return pack_f32(sign, bitcast<i32>(ea - eb + 127u - up), (quotient + 1u) >> 1u);
}
"""

_ROOT = """\
fn sqrt_f32(x: u32) -> u32 {
    let e = (x >> 23u) & 0xFFu;
    if (e == 0u) {
        return x & 0x80000000u;
    }
    if (x >= 0x7F800000u) {
        return select(0x7FC00000u, x, x == 0x7F800000u);
    }
    let odd = (e & 1u) ^ 1u;
    let square = ((x & 0x7FFFFFu) | 0x800000u) << (25u + odd);
    let guess = u32(sqrt(bitcast<f32>((x & 0x7FFFFFu) | ((127u + odd) << 23u))) * 16777216.0);
    let off = f32(bitcast<i32>(square - guess * guess)) / (2.0 * f32(guess));
    let root = guess + bitcast<u32>(i32(floor(off)));
    let rest = bitcast<i32>(square - root * root);
    let last = select(select(0, 1, rest > bitcast<i32>(2u * root)), -1, rest < 0);
    return pack_f32(0u, bitcast<i32>((e + 127u) >> 1u), (root + bitcast<u32>(last) + 1u) >> 1u);
}
"""

# Product and addend in 62 bits each, the significand on top. The one with the smaller unit is shifted down to the other
# one's; where that loses bits, the two differ so much that the sum keeps 60 bits, and the last bit stands for all that
# was lost.
_FMA = """\
fn fma_f32(a: u32, b: u32, c: u32) -> u32 {
    let sp = (a ^ b) & 0x80000000u;
    let sc = c & 0x80000000u;
    let ea = (a >> 23u) & 0xFFu;
    let eb = (b >> 23u) & 0xFFu;
    let ec = (c >> 23u) & 0xFFu;
    if (max(ea, max(eb, ec)) == 255u) {
        let has_nan = max(a & 0x7FFFFFFFu, max(b & 0x7FFFFFFFu, c & 0x7FFFFFFFu)) > 0x7F800000u;
        let is_product = max(ea, eb) == 255u;
        if (has_nan || (is_product && (min(ea, eb) == 0u || (ec == 255u && sp != sc)))) {
            return 0x7FC00000u;
        }
        return select(sc, sp, is_product) | 0x7F800000u;
    }
    if (min(ea, eb) == 0u) {
        return select(c, sp & sc, ec == 0u);
    }
    let ma = (a & 0x7FFFFFu) | 0x800000u;
    let mb = (b & 0x7FFFFFu) | 0x800000u;
    let mc = select((c & 0x7FFFFFu) | 0x800000u, 0u, ec == 0u);
    let unit_c = bitcast<i32>(ec) - 188;
    let unit_p = bitcast<i32>(ea + eb) - 314;
    let unit = max(unit_p, unit_c);
    let p = shift_and_keep(shift_up(vec2<u32>(ma * mb, mulhi_u32(ma, mb)), 14u), bitcast<u32>(unit - unit_p));
    let q = shift_and_keep(vec2<u32>(0u, mc << 6u), bitcast<u32>(unit - unit_c));
    var sign = sp;
    var sum = add_u64(p, q);
    if (sp != sc) {
        let is_less = lt_u64(p, q);
        sum = select(sub_u64(p, q), sub_u64(q, p), is_less);
        sign = select(sp, sc, is_less);
        if ((sum.x | sum.y) == 0u) {
            return 0u;
        }
    }
    let n = leading_zeros(sum);
    sum = shift_up(sum, n);
    return pack_f32(sign, unit + 190 - bitcast<i32>(n), round_to_24(sum.y | select(0u, 1u, sum.x != 0u)));
}
fn shift_and_keep(x: vec2<u32>, n: u32) -> vec2<u32> {
    if (n > 63u) {
        return vec2<u32>(select(0u, 1u, (x.x | x.y) != 0u), 0u);
    }
    let y = shift_down(x, n);
    return vec2<u32>(y.x | select(0u, 1u, any(shift_up(y, n) != x)), y.y);
}
"""

# `pack_f32` takes a biased exponent that may be out of range, and a significand from 2^23 up to 2^24.
_FLOATS = """\
fn pack_f32(sign: u32, exponent: i32, significand: u32) -> u32 {
    let e = exponent + bitcast<i32>(significand >> 24u);
    let number = (bitcast<u32>(e) << 23u) | (significand & 0x7FFFFFu);
    return sign | select(select(number, 0x7F800000u, e > 254), 0u, e < 1);
}
fn round_to_24(x: u32) -> u32 {
    return (x >> 8u) + select(0u, 1u, (x & 0xFFu) + ((x >> 8u) & 1u) > 0x80u);
}
fn neg_f32(x: u32) -> u32 {
    return x ^ 0x80000000u;
}
fn abs_f32(x: u32) -> u32 {
    return x & 0x7FFFFFFFu;
}
fn copysign_f32(a: u32, b: u32) -> u32 {
    return (a & 0x7FFFFFFFu) | (b & 0x80000000u);
}
fn flush_f32(x: u32) -> u32 {
    return select(x, x & 0x80000000u, (x & 0x7F800000u) == 0u);
}
fn is_nan(x: u32) -> bool {
    return (x & 0x7FFFFFFFu) > 0x7F800000u;
}
fn quiet_f32(x: u32) -> u32 {
    return select(x, 0x7FC00000u, is_nan(x));
}
fn place(x: u32) -> i32 {
    return bitcast<i32>(select(x, x ^ 0x7FFFFFFFu, (x >> 31u) != 0u));
}
fn min_f32(a: u32, b: u32) -> u32 {
    return select(b, a, is_nan(b) || (place(a) < place(b) && !is_nan(a)));
}
fn max_f32(a: u32, b: u32) -> u32 {
    return select(b, a, is_nan(b) || (place(a) > place(b) && !is_nan(a)));
}
fn fraction_mask(x: u32) -> u32 {
    let e = (x >> 23u) & 0xFFu;
    return select(select(0x7FFFFFu >> ((e - 127u) & 31u), 0u, e > 149u), 0x7FFFFFFFu, e < 127u);
}
fn trunc_f32(x: u32) -> u32 {
    return x & ~fraction_mask(x);
}
fn away_f32(x: u32) -> u32 {
    let mask = fraction_mask(x);
    let one = select(x & 0x80000000u, (x & 0x80000000u) | 0x3F800000u, (x & mask) != 0u);
    return select((x + mask) & ~mask, one, mask == 0x7FFFFFFFu);
}
fn floor_f32(x: u32) -> u32 {
    return select(trunc_f32(x), away_f32(x), (x >> 31u) != 0u);
}
fn ceil_f32(x: u32) -> u32 {
    return select(away_f32(x), trunc_f32(x), (x >> 31u) != 0u);
}
"""

_FLOAT_CONVERSIONS = """\
fn convert_bool_f32(x: bool) -> u32 {
    return select_f32(x, 0x3F800000u, 0u);
}
fn convert_u32_f32(x: u32) -> u32 {
    let n = countLeadingZeros(x);
    return select(pack_f32(0u, 158 - bitcast<i32>(n), round_to_24(x << (n & 31u))), 0u, x == 0u);
}
fn convert_i32_f32(x: i32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = bits & 0x80000000u;
    return sign | convert_u32_f32(select(bits, 0u - bits, sign != 0u));
}
fn convert_u64_f32(x: vec2<u32>) -> u32 {
    let n = leading_zeros(x);
    let y = shift_up(x, n & 63u);
    let significand = round_to_24(y.y | select(0u, 1u, y.x != 0u));
    return select(pack_f32(0u, 190 - bitcast<i32>(n), significand), 0u, n == 64u);
}
fn convert_i64_f32(x: vec2<u32>) -> u32 {
    return (x.y & 0x80000000u) | convert_u64_f32(size_i64(x));
}
fn size_as_u32(x: u32) -> u32 {
    let e = (x >> 23u) & 0xFFu;
    let number = (((x & 0x7FFFFFu) | 0x800000u) << 8u) >> ((158u - e) & 31u);
    return select(select(number, 0xFFFFFFFFu, e > 158u), 0u, e < 127u || is_nan(x));
}
fn convert_f32_u32(x: u32) -> u32 {
    return select(size_as_u32(x), 0u, (x >> 31u) != 0u);
}
fn convert_f32_i32(x: u32) -> i32 {
    let sign = x >> 31u;
    let size = min(size_as_u32(x), 0x7FFFFFFFu + sign);
    return bitcast<i32>(select(size, 0u - size, sign != 0u));
}
fn size_as_u64(x: u32) -> vec2<u32> {
    let e = (x >> 23u) & 0xFFu;
    let number = shift_down(vec2<u32>(0u, ((x & 0x7FFFFFu) | 0x800000u) << 8u), (190u - e) & 63u);
    return select(select(number, vec2<u32>(0xFFFFFFFFu), e > 190u), vec2<u32>(0u), e < 127u || is_nan(x));
}
fn convert_f32_u64(x: u32) -> vec2<u32> {
    return select(size_as_u64(x), vec2<u32>(0u), (x >> 31u) != 0u);
}
fn convert_f32_i64(x: u32) -> vec2<u32> {
    let size = size_as_u64(x);
    let is_negative = (x >> 31u) != 0u;
    let number = select(size, sub_u64(vec2<u32>(0u), size), is_negative);
    let limit = select(vec2<u32>(0xFFFFFFFFu, 0x7FFFFFFFu), vec2<u32>(0u, 0x80000000u), is_negative);
    return select(number, limit, (size.y >> 31u) != 0u);
}
"""

_HALVES = """\
fn load_f16(x: u32) -> u32 {
    let sign = (x & 0x8000u) << 16u;
    let m = (x & 0x3FFu) << 13u;
    let e = (x >> 10u) & 31u;
    if (e == 31u) {
        return sign | 0x7F800000u | m;
    }
    if (e != 0u) {
        return sign | ((e + 112u) << 23u) | m;
    }
    let n = countLeadingZeros(m) - 8u;
    return sign | select(((113u - n) << 23u) | ((m << (n & 31u)) & 0x7FFFFFu), 0u, m == 0u);
}
fn store_f16(x: u32) -> u32 {
    let size = x & 0x7FFFFFFFu;
    let sign = (x >> 16u) & 0x8000u;
    if (size > 0x7F800000u) {
        return 0x7E00u;
    }
    if (size > 0x387FFFFFu) {
        return sign | select((size - 0x38000000u + 0xFFFu + ((size >> 13u) & 1u)) >> 13u, 0x7C00u, size > 0x477FEFFFu);
    }
    let shift = 126u - (size >> 23u);
    if (shift > 24u) {
        return sign;
    }
    let m = (size & 0x7FFFFFu) | 0x800000u;
    let half = m >> shift;
    let rest = m - (half << shift);
    return sign | (half + select(0u, 1u, rest + (half & 1u) > (1u << (shift - 1u))));
}
fn round_f16(x: u32) -> u32 {
    return load_f16(store_f16(x));
}
fn load_bf16(x: u32) -> u32 {
    return x << 16u;
}
fn store_bf16(x: u32) -> u32 {
    return x >> 16u;
}
fn round_bf16(x: u32) -> u32 {
    return select((x + 0x7FFFu + ((x >> 16u) & 1u)) & 0xFFFF0000u, 0x7FC00000u, is_nan(x));
}
"""

# ---- whole numbers --------------------------------------------------------------------------------------------------

# A remainder of a negative number by the device's own instruction may be anything.
_WORDS = """\
fn mulhi_u32(a: u32, b: u32) -> u32 {
    let al = a & 0xFFFFu;
    let ah = a >> 16u;
    let bl = b & 0xFFFFu;
    let bh = b >> 16u;
    let middle = ah * bl + ((al * bl) >> 16u);
    let other = al * bh + (middle & 0xFFFFu);
    return ah * bh + (middle >> 16u) + (other >> 16u);
}
fn rem_i32(a: i32, b: i32) -> i32 {
    return a - (a / b) * b;
}
fn popcount_i32(x: i32) -> i32 {
    return bitcast<i32>(countOneBits(bitcast<u32>(x)));
}
fn clz_i32(x: i32) -> i32 {
    return bitcast<i32>(countLeadingZeros(bitcast<u32>(x)));
}
fn ctz_i32(x: i32) -> i32 {
    return bitcast<i32>(countTrailingZeros(bitcast<u32>(x)));
}
fn bitrev_i32(x: i32) -> i32 {
    return bitcast<i32>(reverseBits(bitcast<u32>(x)));
}
fn narrow_u8(x: u32) -> u32 {
    return x & 0xFFu;
}
fn narrow_u16(x: u32) -> u32 {
    return x & 0xFFFFu;
}
fn narrow_i8(x: i32) -> i32 {
    return (x << 24u) >> 24u;
}
fn narrow_i16(x: i32) -> i32 {
    return (x << 16u) >> 16u;
}
"""

_PAIRS = """\
fn shift_up(x: vec2<u32>, n: u32) -> vec2<u32> {
    let k = n & 31u;
    let low = x.x << k;
    let high = (x.y << k) | ((x.x >> 1u) >> (31u - k));
    return select(vec2<u32>(low, high), vec2<u32>(0u, low), n > 31u);
}
fn shift_down(x: vec2<u32>, n: u32) -> vec2<u32> {
    let k = n & 31u;
    let low = (x.x >> k) | ((x.y << 1u) << (31u - k));
    let high = x.y >> k;
    return select(vec2<u32>(low, high), vec2<u32>(high, 0u), n > 31u);
}
fn leading_zeros(x: vec2<u32>) -> u32 {
    return select(countLeadingZeros(x.y), 32u + countLeadingZeros(x.x), x.y == 0u);
}
fn add_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + convert_bool_u32(low < a.x));
}
fn sub_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - convert_bool_u32(a.x < b.x));
}
fn mul_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x * b.x, mulhi_u32(a.x, b.x) + a.x * b.y + a.y * b.x);
}
fn shl_u64(x: vec2<u32>, n: vec2<u32>) -> vec2<u32> {
    return shift_up(x, n.x);
}
fn shr_u64(x: vec2<u32>, n: vec2<u32>) -> vec2<u32> {
    return shift_down(x, n.x);
}
fn shr_i64(x: vec2<u32>, n: vec2<u32>) -> vec2<u32> {
    let flip = vec2<u32>(0u - (x.y >> 31u));
    return shift_down(x ^ flip, n.x) ^ flip;
}
fn popcount_u64(x: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(countOneBits(x.x) + countOneBits(x.y), 0u);
}
fn clz_u64(x: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(leading_zeros(x), 0u);
}
fn ctz_u64(x: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(select(countTrailingZeros(x.x), 32u + countTrailingZeros(x.y), x.x == 0u), 0u);
}
fn bitrev_u64(x: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(reverseBits(x.y), reverseBits(x.x));
}
fn eq_u64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return all(a == b);
}
fn ne_u64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return any(a != b);
}
fn lt_u64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return select(a.y < b.y, a.x < b.x, a.y == b.y);
}
fn le_u64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return !lt_u64(b, a);
}
fn gt_u64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return lt_u64(b, a);
}
fn ge_u64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return !lt_u64(a, b);
}
fn lt_i64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return select(bitcast<i32>(a.y) < bitcast<i32>(b.y), a.x < b.x, a.y == b.y);
}
fn le_i64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return !lt_i64(b, a);
}
fn gt_i64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return lt_i64(b, a);
}
fn ge_i64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return !lt_i64(a, b);
}
fn min_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(b, a, lt_u64(a, b));
}
fn max_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, lt_u64(a, b));
}
fn min_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(b, a, lt_i64(a, b));
}
fn max_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, lt_i64(a, b));
}
fn size_i64(x: vec2<u32>) -> vec2<u32> {
    return select(x, sub_u64(vec2<u32>(0u), x), (x.y >> 31u) != 0u);
}
"""

# `divide_pair` divides by a word with its top bit set and a high word below it: two digits of 16 bits, each an estimate
# from the top half of the divisor, which is at most 2 too large. A divisor above 32 bits makes the quotient one word:
# that of the top halves of divisor and dividend is at most 1 too large, so take 1 off and correct from below.
_PAIR_DIVISION = """\
fn digit_of(rest: u32, next: u32, by: u32) -> u32 {
    let top = by >> 16u;
    var digit = min(rest / top, 0xFFFFu);
    var left = rest - digit * top;
    if (is_too_large(digit, left, next, by)) {
        digit -= 1u;
        left += top;
        digit -= select(0u, 1u, is_too_large(digit, left, next, by));
    }
    return digit;
}
fn is_too_large(digit: u32, left: u32, next: u32, by: u32) -> bool {
    return left < 0x10000u && digit * (by & 0xFFFFu) > ((left << 16u) | next);
}
fn divide_pair(x: vec2<u32>, by: u32) -> u32 {
    let first = digit_of(x.y, x.x >> 16u, by);
    let rest = ((x.y << 16u) | (x.x >> 16u)) - first * by;
    return (first << 16u) | digit_of(rest, x.x & 0xFFFFu, by);
}
fn div_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let n = leading_zeros(b);
    if (n > 31u) {
        let high = a.y / b.x;
        let rest = vec2<u32>(a.x, a.y - high * b.x);
        return vec2<u32>(divide_pair(shift_up(rest, n - 32u), b.x << (n - 32u)), high);
    }
    let by = shift_up(b, n).y;
    var guess = divide_pair(shift_down(a, 1u), by) >> (31u - n);
    guess -= select(1u, 0u, guess == 0u);
    let rest = sub_u64(a, mul_u64(b, vec2<u32>(guess, 0u)));
    return vec2<u32>(guess + select(1u, 0u, lt_u64(rest, b)), 0u);
}
fn rem_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return sub_u64(a, mul_u64(b, div_u64(a, b)));
}
fn div_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let size = div_u64(size_i64(a), size_i64(b));
    return select(size, sub_u64(vec2<u32>(0u), size), ((a.y ^ b.y) >> 31u) != 0u);
}
fn rem_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let size = rem_u64(size_i64(a), size_i64(b));
    return select(size, sub_u64(vec2<u32>(0u), size), (a.y >> 31u) != 0u);
}
"""

_PAIR_CONVERSIONS = """\
fn convert_bool_u32(x: bool) -> u32 {
    return select_u32(x, 1u, 0u);
}
fn convert_bool_i32(x: bool) -> i32 {
    return select_i32(x, 1, 0);
}
fn convert_bool_u64(x: bool) -> vec2<u32> {
    return vec2<u32>(convert_bool_u32(x), 0u);
}
fn convert_u32_u64(x: u32) -> vec2<u32> {
    return vec2<u32>(x, 0u);
}
fn convert_i32_u64(x: i32) -> vec2<u32> {
    return vec2<u32>(bitcast<u32>(x), bitcast<u32>(x >> 31u));
}
fn convert_u64_u32(x: vec2<u32>) -> u32 {
    return x.x;
}
fn convert_u64_i32(x: vec2<u32>) -> i32 {
    return bitcast<i32>(x.x);
}
"""

_NAMES = frozenset(_library(True, False, False, False))
