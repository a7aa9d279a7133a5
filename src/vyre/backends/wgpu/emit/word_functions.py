"""Functions of whole numbers in WGSL: what it has no operator for, and 64 bits in pairs of words.

A u64 or i64 is `vec2<u32>`: the low word, then the high one.
"""

from __future__ import annotations

# A remainder of a negative number by the device's own instruction may be anything.
WORDS = """\
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

PAIRS = """\
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
PAIR_DIVISION = """\
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
    return (left < 0x10000u) & (digit * (by & 0xFFFFu) > ((left << 16u) | next));
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

PAIR_CONVERSIONS = """\
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
