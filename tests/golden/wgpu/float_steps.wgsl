struct Params {
    len_x: u32,
    len_y: u32,
    len_out: u32,
    base_x: u32,
    base_y: u32,
    base_z: u32,
    row: u32,
    z0: u32,
    z1: u32,
}
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> buf_x: array<u32>;
@group(0) @binding(1) var<storage, read> buf_y: array<u32>;
@group(0) @binding(2) var<storage, read_write> buf_out: array<u32>;

fn select_u32(test: bool, a: u32, b: u32) -> u32 {
    return select(b, a + (params.z0 & params.z1), test);
}
fn select_f32(test: bool, a: u32, b: u32) -> u32 {
    return select(b, a + (params.z0 & params.z1), test);
}
fn lt_f32(a: u32, b: u32) -> bool {
    return (max(a & 0x7FFFFFFFu, b & 0x7FFFFFFFu) <= 0x7F800000u) & (((bitcast<i32>(a & 0x7FFFFFFFu) ^ (bitcast<i32>(a) >> 31u)) - (bitcast<i32>(a) >> 31u)) < ((bitcast<i32>(b & 0x7FFFFFFFu) ^ (bitcast<i32>(b) >> 31u)) - (bitcast<i32>(b) >> 31u)));
}
fn ge_f32(a: u32, b: u32) -> bool {
    return (max(a & 0x7FFFFFFFu, b & 0x7FFFFFFFu) <= 0x7F800000u) & (((bitcast<i32>(a & 0x7FFFFFFFu) ^ (bitcast<i32>(a) >> 31u)) - (bitcast<i32>(a) >> 31u)) >= ((bitcast<i32>(b & 0x7FFFFFFFu) ^ (bitcast<i32>(b) >> 31u)) - (bitcast<i32>(b) >> 31u)));
}
fn add_f32(a: u32, b: u32) -> u32 {
    let found = bitcast<u32>(bitcast<f32>(a ^ params.z0) + bitcast<f32>(b ^ params.z1));
    return select(found, found & 0x80000000u, (found & 0x7F800000u) == 0u);
}
fn sub_f32(a: u32, b: u32) -> u32 {
    let found = bitcast<u32>(bitcast<f32>(a ^ params.z0) - bitcast<f32>(b ^ params.z1));
    return select(found, found & 0x80000000u, (found & 0x7F800000u) == 0u);
}
fn div_f32(a: u32, b: u32) -> u32 {
    let first = bitcast<f32>(a ^ params.z0);
    let second = bitcast<f32>(b ^ params.z1);
    let found = bitcast<u32>(first / second);
    let scaled = bitcast<u32>(first * 16777216.0);
    let large = bitcast<u32>(bitcast<f32>(scaled ^ params.z0) / second);
    return select(found, found & 0x80000000u, (large & 0x7FFFFFFFu) < 0x0C800000u);
}
fn sqrt_f32(x: u32) -> u32 {
    return bitcast<u32>(sqrt(bitcast<f32>(x ^ params.z0)));
}
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
fn pack_f32(sign: u32, exponent: i32, significand: u32) -> u32 {
    let e = exponent + bitcast<i32>(significand >> 24u);
    let number = (bitcast<u32>(e) << 23u) | (significand & 0x7FFFFFu);
    return sign | select(select(number, 0x7F800000u, e > 254), 0u, e < 1);
}
fn round_to_24(x: u32) -> u32 {
    return (x >> 8u) + select(0u, 1u, (x & 0xFFu) + ((x >> 8u) & 1u) > 0x80u);
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
fn quiet_f32(x: u32) -> u32 {
    return select(x, 0x7FC00000u, ((x & 0x7FFFFFFFu) > 0x7F800000u));
}
fn min_f32(a: u32, b: u32) -> u32 {
    return select(b, a, ((b & 0x7FFFFFFFu) > 0x7F800000u) | (((bitcast<i32>(a) ^ bitcast<i32>(bitcast<u32>(bitcast<i32>(a) >> 31u) >> 1u)) < (bitcast<i32>(b) ^ bitcast<i32>(bitcast<u32>(bitcast<i32>(b) >> 31u) >> 1u))) & !((a & 0x7FFFFFFFu) > 0x7F800000u)));
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
fn convert_u32_f32(x: u32) -> u32 {
    let n = countLeadingZeros(x);
    return select(pack_f32(0u, 158 - bitcast<i32>(n), round_to_24(x << (n & 31u))), 0u, x == 0u);
}
fn convert_i32_f32(x: i32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = bits & 0x80000000u;
    return sign | convert_u32_f32(select(bits, 0u - bits, sign != 0u));
}
fn size_as_u32(x: u32) -> u32 {
    let e = (x >> 23u) & 0xFFu;
    let number = (((x & 0x7FFFFFu) | 0x800000u) << 8u) >> ((158u - e) & 31u);
    return select(select(number, 0xFFFFFFFFu, e > 158u), 0u, (e < 127u) | ((x & 0x7FFFFFFFu) > 0x7F800000u));
}
fn convert_f32_i32(x: u32) -> i32 {
    let sign = x >> 31u;
    let size = min(size_as_u32(x), 0x7FFFFFFFu + sign);
    return bitcast<i32>(select(size, 0u - size, sign != 0u));
}
fn mulhi_u32(a: u32, b: u32) -> u32 {
    let al = a & 0xFFFFu;
    let ah = a >> 16u;
    let bl = b & 0xFFFFu;
    let bh = b >> 16u;
    let middle = ah * bl + ((al * bl) >> 16u);
    let other = al * bh + (middle & 0xFFFFu);
    return ah * bh + (middle >> 16u) + (other >> 16u);
}
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
fn lt_u64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return select(a.y < b.y, a.x < b.x, a.y == b.y);
}
fn convert_bool_u32(x: bool) -> u32 {
    return select_u32(x, 1u, 0u);
}

@compute @workgroup_size(64, 1, 1)
fn vyre_kernel(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) lid: vec3<u32>) {
    let wid_x = group.x + group.y * params.row + params.base_x;
    let gid_x = wid_x * 64u + lid.x;
    let v1 = gid_x * 7u;
    let v2 = select(0u, buf_x[select(0u, gid_x, gid_x < params.len_x)], gid_x < params.len_x);
    let v3 = flush_f32(v2);
    let v4 = select(0u, buf_y[select(0u, gid_x, gid_x < params.len_y)], gid_x < params.len_y);
    let v5 = flush_f32(v4);
    if (v1 < params.len_out) { buf_out[v1] = quiet_f32(fma_f32(v3, v5, 0x3f000000u)); }
    let v6 = v1 + 1u;
    if (v6 < params.len_out) { buf_out[v6] = quiet_f32(div_f32(v3, v5)); }
    let v7 = v1 + 2u;
    if (v7 < params.len_out) { buf_out[v7] = quiet_f32(sqrt_f32(v3)); }
    let v8 = v1 + 3u;
    if (v8 < params.len_out) { buf_out[v8] = quiet_f32(min_f32(v3, v5)); }
    let v9 = abs_f32(v3);
    let v10 = floor_f32(v9);
    let v11 = select_f32(ge_f32(sub_f32(v9, v10), 0x3f000000u), add_f32(v10, 0x3f800000u), v10);
    let v12 = v1 + 4u;
    if (v12 < params.len_out) { buf_out[v12] = quiet_f32(copysign_f32(v11, v3)); }
    let v13 = quiet_f32(select_f32(lt_f32(v3, v5), 0xbf800000u + (params.z0 + params.z1), 0u));
    let v14 = v1 + 5u;
    if (v14 < params.len_out) { buf_out[v14] = v13; }
    let v15 = v1 + 6u;
    if (v15 < params.len_out) { buf_out[v15] = convert_i32_f32(convert_f32_i32(v3)); }
}
