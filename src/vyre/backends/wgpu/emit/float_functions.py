"""Functions of floats in WGSL: arithmetic that nothing behind the text changes, conversions, and f16 and bf16.

An f32 is the `u32` of its bits; `prelude` says which function does what, and chooses among those that a device needs.
"""

from __future__ import annotations

# Two words, so that common subexpressions do not bring the operands together: `t - t` is not always 0. Comparisons
# are whole numbers here: a compiler that takes `!(a < b)` for `a >= b` forgets NaN, and no fence stands before the `!`.
# Mesa takes a choice between words that look like 0.0 and -1.0, or like -0.0 and 1.0, for the conversion of a bool, and
# gives the wrong zero; it also adds what is added later to both words first, so no choice may be between two words that
# it knows. They are hidden by adding another zero than those of operands: `x ^ z0 ^ z0` is `x` and hides nothing.
FENCED = """\
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
fn eq_f32(a: u32, b: u32) -> bool {
    return IS_ORDERED & (ORDER(a) == ORDER(b));
}
fn ne_f32(a: u32, b: u32) -> bool {
    return !(IS_ORDERED) | (ORDER(a) != ORDER(b));
}
fn lt_f32(a: u32, b: u32) -> bool {
    return IS_ORDERED & (ORDER(a) < ORDER(b));
}
fn le_f32(a: u32, b: u32) -> bool {
    return IS_ORDERED & (ORDER(a) <= ORDER(b));
}
fn gt_f32(a: u32, b: u32) -> bool {
    return IS_ORDERED & (ORDER(a) > ORDER(b));
}
fn ge_f32(a: u32, b: u32) -> bool {
    return IS_ORDERED & (ORDER(a) >= ORDER(b));
}
"""

PLAIN = """\
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

# Calls cost Mesa's compiler more than what is called does, so what is in every step is written out: these words in the
# texts stand for expressions, with the operand for `x`. For the same reason there is no && or || in them, which the
# library makes branches of.
IN_PLACE = {
    "IS_ORDERED": "(max(a & 0x7FFFFFFFu, b & 0x7FFFFFFFu) <= 0x7F800000u)",
    "ORDER": "((bitcast<i32>(x & 0x7FFFFFFFu) ^ (bitcast<i32>(x) >> 31u)) - (bitcast<i32>(x) >> 31u))",
    "PLACE": "(bitcast<i32>(x) ^ bitcast<i32>(bitcast<u32>(bitcast<i32>(x) >> 31u) >> 1u))",
    "IS_NAN": "((x & 0x7FFFFFFFu) > 0x7F800000u)",
    "FLUSH": "select(x, x & 0x80000000u, (x & 0x7F800000u) == 0u)",
    "SETTLE": "select(x, x & 0x80000000u, (large & 0x7FFFFFFFu) < 0x0C800000u)",
}
OPERANDS = {
    True: {
        "FIRST": "bitcast<f32>(x ^ params.z0)",
        "SECOND": "bitcast<f32>(x ^ params.z1)",
        "THIRD": "bitcast<f32>(x ^ (params.z0 | params.z1))",
    },
    False: dict.fromkeys(("FIRST", "SECOND", "THIRD"), "bitcast<f32>(x)"),
}
"""With fences and without."""

ARITHMETIC = """\
fn add_f32(a: u32, b: u32) -> u32 {
    return bitcast<u32>(FIRST(a) + SECOND(b));
}
fn sub_f32(a: u32, b: u32) -> u32 {
    return bitcast<u32>(FIRST(a) - SECOND(b));
}
fn mul_f32(a: u32, b: u32) -> u32 {
    return bitcast<u32>(FIRST(a) * SECOND(b));
}
"""

NATIVE_DIVIDE = """\
fn div_f32(a: u32, b: u32) -> u32 {
    return bitcast<u32>(FIRST(a) / SECOND(b));
}
"""

NATIVE_ROOT = """\
fn sqrt_f32(x: u32) -> u32 {
    return bitcast<u32>(sqrt(FIRST(x)));
}
"""

NATIVE_FMA = """\
fn fma_f32(a: u32, b: u32, c: u32) -> u32 {
    return bitcast<u32>(fma(FIRST(a), SECOND(b), THIRD(c)));
}
"""

# The same where the device keeps subnormals. A sum of normal numbers that comes out tiny is exact. Of the others counts
# the result rounded as if exponents had no bounds: computing again with one operand scaled by 2^24 shows it, because
# nothing near 2^-102 is tiny. Where the scaled operand overflows, no normal second operand makes the result tiny.
FLUSHED_ARITHMETIC = """\
fn add_f32(a: u32, b: u32) -> u32 {
    let found = bitcast<u32>(FIRST(a) + SECOND(b));
    return FLUSH(found);
}
fn sub_f32(a: u32, b: u32) -> u32 {
    let found = bitcast<u32>(FIRST(a) - SECOND(b));
    return FLUSH(found);
}
fn mul_f32(a: u32, b: u32) -> u32 {
    let first = FIRST(a);
    let second = SECOND(b);
    let found = bitcast<u32>(first * second);
    let scaled = bitcast<u32>(first * 16777216.0);
    let large = bitcast<u32>(FIRST(scaled) * second);
    return SETTLE(found);
}
"""

FLUSHED_DIVIDE = """\
fn div_f32(a: u32, b: u32) -> u32 {
    let first = FIRST(a);
    let second = SECOND(b);
    let found = bitcast<u32>(first / second);
    let scaled = bitcast<u32>(first * 16777216.0);
    let large = bitcast<u32>(FIRST(scaled) / second);
    return SETTLE(found);
}
"""

FLUSHED_FMA = """\
fn fma_f32(a: u32, b: u32, c: u32) -> u32 {
    let first = FIRST(a);
    let second = SECOND(b);
    let third = THIRD(c);
    let found = bitcast<u32>(fma(first, second, third));
    let scaled = bitcast<u32>(first * 16777216.0);
    let added = bitcast<u32>(third * 16777216.0);
    let large = bitcast<u32>(fma(FIRST(scaled), second, THIRD(added)));
    return SETTLE(found);
}
"""

# The product is exact in f64, and so is the error of its sum with the addend. Rounding twice is wrong where the sum
# lies halfway between two f32 and is not exact: there it goes one bit to the side of the error. Tiny is what is below
# 2^-126 less a quarter of its last place: from there on it rounds up to that.
WIDE_FMA = """\
fn fma_f32(a: u32, b: u32, c: u32) -> u32 {
    let hidden = u64(params.z0);
    let p = f64(FIRST(a)) * f64(SECOND(b));
    let d = f64(THIRD(c));
    let bits = bitcast<u64>(p + d);
    let sum = bitcast<f64>(bits ^ hidden);
    let t = bitcast<f64>(bitcast<u64>(sum - p) ^ hidden);
    let error = bitcast<u64>((p - (sum - t)) + (d - t));
    let side = select(1lu, 0xFFFFFFFFFFFFFFFFlu, ((error ^ bits) >> 63u) != 0lu);
    let is_between = ((u32(bits) & 0x1FFFFFFFu) == 0x10000000u) & ((error << 1u) != 0lu);
    let moved = bits + select(0lu, side, is_between);
    let found = bitcast<u32>(f32(bitcast<f64>(moved)));
    return select(found, found & 0x80000000u, (moved & 0x7FFFFFFFFFFFFFFFlu) < 0x380FFFFFF0000000lu);
}
"""

# The quotient of the significands in 25 bits, rounded down: an estimate, off by a few dozen at most, then corrected by
# its remainder, which fits a word although the product does not. Half of it, rounded up, is the quotient in 24 bits,
# for a quotient is never halfway between two of those: an odd 25-bit number times the divisor has too many bits for a
# dividend. The same holds for roots.
DIVIDE = """\
fn div_f32(a: u32, b: u32) -> u32 {
    let sign = (a ^ b) & 0x80000000u;
    let ea = (a >> 23u) & 0xFFu;
    let eb = (b >> 23u) & 0xFFu;
    if ((ea - 1u > 253u) | (eb - 1u > 253u)) {
        let has_nan = max(a & 0x7FFFFFFFu, b & 0x7FFFFFFFu) > 0x7F800000u;
        if (has_nan | ((ea == eb) & ((ea == 0u) | (ea == 255u)))) {
            return 0x7FC00000u;
        }
        return sign | select(0u, 0x7F800000u, (ea == 255u) | (eb == 0u));
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

ROOT = """\
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
FMA = """\
fn fma_f32(a: u32, b: u32, c: u32) -> u32 {
    let sp = (a ^ b) & 0x80000000u;
    let sc = c & 0x80000000u;
    let ea = (a >> 23u) & 0xFFu;
    let eb = (b >> 23u) & 0xFFu;
    let ec = (c >> 23u) & 0xFFu;
    if (max(ea, max(eb, ec)) == 255u) {
        let has_nan = max(a & 0x7FFFFFFFu, max(b & 0x7FFFFFFFu, c & 0x7FFFFFFFu)) > 0x7F800000u;
        let is_product = max(ea, eb) == 255u;
        if (has_nan | (is_product & ((min(ea, eb) == 0u) | ((ec == 255u) & (sp != sc))))) {
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
FLOATS = """\
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
    return FLUSH(x);
}
fn quiet_f32(x: u32) -> u32 {
    return select(x, 0x7FC00000u, IS_NAN(x));
}
fn min_f32(a: u32, b: u32) -> u32 {
    return select(b, a, IS_NAN(b) | ((PLACE(a) < PLACE(b)) & !IS_NAN(a)));
}
fn max_f32(a: u32, b: u32) -> u32 {
    return select(b, a, IS_NAN(b) | ((PLACE(a) > PLACE(b)) & !IS_NAN(a)));
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

FLOAT_CONVERSIONS = """\
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
    return select(select(number, 0xFFFFFFFFu, e > 158u), 0u, (e < 127u) | IS_NAN(x));
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
    return select(select(number, vec2<u32>(0xFFFFFFFFu), e > 190u), vec2<u32>(0u), (e < 127u) | IS_NAN(x));
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

HALVES = """\
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
    return select((x + 0x7FFFu + ((x >> 16u) & 1u)) & 0xFFFF0000u, 0x7FC00000u, IS_NAN(x));
}
"""
