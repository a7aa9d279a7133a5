struct Params {
    len_x: u32,
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
@group(0) @binding(1) var<storage, read_write> buf_out: array<u32>;

fn select_u32(test: bool, a: u32, b: u32) -> u32 {
    return select(b, a + (params.z0 & params.z1), test);
}
fn select_f32(test: bool, a: u32, b: u32) -> u32 {
    return select(b, a + (params.z0 & params.z1), test);
}
fn eq_f32(a: u32, b: u32) -> bool {
    return (max(a & 0x7FFFFFFFu, b & 0x7FFFFFFFu) <= 0x7F800000u) & (((bitcast<i32>(a & 0x7FFFFFFFu) ^ (bitcast<i32>(a) >> 31u)) - (bitcast<i32>(a) >> 31u)) == ((bitcast<i32>(b & 0x7FFFFFFFu) ^ (bitcast<i32>(b) >> 31u)) - (bitcast<i32>(b) >> 31u)));
}
fn lt_f32(a: u32, b: u32) -> bool {
    return (max(a & 0x7FFFFFFFu, b & 0x7FFFFFFFu) <= 0x7F800000u) & (((bitcast<i32>(a & 0x7FFFFFFFu) ^ (bitcast<i32>(a) >> 31u)) - (bitcast<i32>(a) >> 31u)) < ((bitcast<i32>(b & 0x7FFFFFFFu) ^ (bitcast<i32>(b) >> 31u)) - (bitcast<i32>(b) >> 31u)));
}
fn le_f32(a: u32, b: u32) -> bool {
    return (max(a & 0x7FFFFFFFu, b & 0x7FFFFFFFu) <= 0x7F800000u) & (((bitcast<i32>(a & 0x7FFFFFFFu) ^ (bitcast<i32>(a) >> 31u)) - (bitcast<i32>(a) >> 31u)) <= ((bitcast<i32>(b & 0x7FFFFFFFu) ^ (bitcast<i32>(b) >> 31u)) - (bitcast<i32>(b) >> 31u)));
}
fn add_f32(a: u32, b: u32) -> u32 {
    let found = bitcast<u32>(bitcast<f32>(a ^ params.z0) + bitcast<f32>(b ^ params.z1));
    return select(found, found & 0x80000000u, (found & 0x7F800000u) == 0u);
}
fn sub_f32(a: u32, b: u32) -> u32 {
    let found = bitcast<u32>(bitcast<f32>(a ^ params.z0) - bitcast<f32>(b ^ params.z1));
    return select(found, found & 0x80000000u, (found & 0x7F800000u) == 0u);
}
fn mul_f32(a: u32, b: u32) -> u32 {
    let first = bitcast<f32>(a ^ params.z0);
    let second = bitcast<f32>(b ^ params.z1);
    let found = bitcast<u32>(first * second);
    let scaled = bitcast<u32>(first * 16777216.0);
    let large = bitcast<u32>(bitcast<f32>(scaled ^ params.z0) * second);
    return select(found, found & 0x80000000u, (large & 0x7FFFFFFFu) < 0x0C800000u);
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
fn neg_f32(x: u32) -> u32 {
    return x ^ 0x80000000u;
}
fn abs_f32(x: u32) -> u32 {
    return x & 0x7FFFFFFFu;
}
fn flush_f32(x: u32) -> u32 {
    return select(x, x & 0x80000000u, (x & 0x7F800000u) == 0u);
}
fn quiet_f32(x: u32) -> u32 {
    return select(x, 0x7FC00000u, ((x & 0x7FFFFFFFu) > 0x7F800000u));
}
fn convert_u32_f32(x: u32) -> u32 {
    let n = countLeadingZeros(x);
    return select(pack_f32(0u, 158 - bitcast<i32>(n), round_to_24(x << (n & 31u))), 0u, x == 0u);
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
    var var_sin_r: u32;
    var var_sin_l: u32;
    var var_sin_n: u32;
    if (params.len_out > gid_x) {
        let v1 = select(0u, buf_x[select(0u, gid_x, gid_x < params.len_x)], gid_x < params.len_x);
        let v2 = flush_f32(v1);
        let v3 = fma_f32(v2, 0x3f22f983u, 0x4b400000u);
        let v4 = sub_f32(v3, 0x4b400000u);
        let v5 = fma_f32(v4, 0xbfc90fdbu, v2);
        let v6 = fma_f32(v4, 0x333bbd2eu, v5);
        var_sin_r = v6 + (params.z0 - params.z1);
        var_sin_l = fma_f32(v4, 0x26f72cedu, fma_f32(v4, 0x333bbd2eu, sub_f32(v5, v6))) + (params.z0 - params.z1);
        var_sin_n = quiet_f32(v3) + (params.z0 - params.z1);
        let v7 = mul_f32(v4, 0x34400000u);
        let v8 = mul_f32(v7, v7);
        if (!(le_f32(v8, mul_f32(v6, v6)) & lt_f32(v8, 0x39800000u))) {
            let v9 = quiet_f32(abs_f32(v2));
            let v10 = (v9 & 0x7fffffu) | 0x800000u;
            let v11 = (v9 >> 23u) - 120u;
            let v12 = (v11 & 128u) != 0u;
            let v13 = select_u32(v12, 0x3c439041u, 0x4e441529u);
            let v14 = select_u32(v12, 0xfe5163abu, 0xfc2757d1u);
            let v15 = (v11 & 64u) != 0u;
            let v16 = select_u32(v15, v14, select_u32(v12, 0xdb629599u, 0xa2f9836eu));
            let v17 = select_u32(v15, 0xf534ddc0u, v13);
            let v18 = select_u32(v15, 0xdb629599u, v14);
            let v19 = (v11 & 32u) != 0u;
            let v20 = select_u32(v19, v16, select_u32(v15, v13, select_u32(v12, 0xf534ddc0u, 0u)));
            let v21 = select_u32(v19, v17, v16);
            let v22 = select_u32(v19, v18, v17);
            let v23 = v11 & 31u;
            let v24 = v23 & 31u;
            let v25 = (31u - v23) & 31u;
            let v26 = (v21 << v24) | ((v22 >> 1u) >> v25);
            let v27 = (select_u32(v19, select_u32(v15, 0x3c439041u, 0xf534ddc0u), v18) >> 1u) >> v25;
            let v28 = (v22 << v24) | v27;
            let v29 = v10 * v26;
            let v30 = v29 + mulhi_u32(v10, v28);
            let v31 = ((v10 * ((v20 << v24) | ((v21 >> 1u) >> v25))) + mulhi_u32(v10, v26)) + select_u32((v30 < v29), 1u, 0u);
            let v32 = v10 * v28;
            let v33 = (v31 >> 29u) & 1u;
            let v34 = 0u - v33;
            let v35 = ((v31 << 2u) | (v30 >> 30u)) ^ v34;
            let v36 = ((v30 << 2u) | (v32 >> 30u)) ^ v34;
            let v37 = countLeadingZeros(v35);
            let v38 = v37 & 31u;
            let v39 = (31u - v37) & 31u;
            let v40 = (v35 << v38) | ((v36 >> 1u) >> v39);
            let v41 = convert_u32_f32(v40 & 0xffffff00u);
            let v42 = mul_f32(v41, 0x3fc90fdbu);
            let v43 = lt_f32(v2, 0u);
            let v44 = flush_f32(((95u - v37) << 23u) | ((v33 ^ select_u32(v43, 1u, 0u)) << 31u));
            let v45 = (v31 >> 30u) + v33;
            let v46 = (v40 << 24u) | (((v36 << v38) | ((((v32 << 2u) ^ v34) >> 1u) >> v39)) >> 8u);
            let v47 = fma_f32(mul_f32(convert_u32_f32(v46), 0x33800000u), 0x3fc90fdbu, fma_f32(v41, 0xb33bbd2eu, fma_f32(v41, 0x3fc90fdbu, neg_f32(v42))));
            var_sin_n = select_u32(v43, 0u - v45, v45) + (params.z0 * params.z1);
            var_sin_r = add_f32(mul_f32(v42, v44), sub_f32(v2, v2)) + (params.z0 * params.z1);
            var_sin_l = mul_f32(v47, v44) + (params.z0 * params.z1);
        }
        let v48 = var_sin_r;
        let v49 = var_sin_l;
        let v50 = fma_f32(v48, v48, mul_f32(v48, add_f32(v49, v49)));
        let v51 = mul_f32(v50, fma_f32(fma_f32(0xb94c8e12u, v50, 0x3c088363u), v50, 0xbe2aaaa2u));
        let v52 = var_sin_n;
        let v53 = fma_f32(v50, fma_f32(fma_f32(0x37ccf0a5u, v50, 0xbab6060du), v50, 0x3d2aaaa5u), 0xbf000000u);
        let v54 = select_f32((v52 & 1u) != 0u, fma_f32(v50, v53, 0x3f800000u), add_f32(v48, fma_f32(v51, v48, v49)));
        let v55 = select_f32(eq_f32(v2, 0u), v2, select_f32((v52 & 2u) != 0u, neg_f32(v54), v54));
        buf_out[gid_x] = quiet_f32(v55);
    }
}
