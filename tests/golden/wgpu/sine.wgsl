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
fn first_operand(x: u32) -> f32 {
    return bitcast<f32>(x ^ params.z0);
}
fn second_operand(x: u32) -> f32 {
    return bitcast<f32>(x ^ params.z1);
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
fn lt_f32(a: u32, b: u32) -> bool {
    return is_ordered(a, b) && order(a) < order(b);
}
fn le_f32(a: u32, b: u32) -> bool {
    return is_ordered(a, b) && order(a) <= order(b);
}
fn add_f32(a: u32, b: u32) -> u32 {
    return bitcast<u32>(first_operand(a) + second_operand(b));
}
fn sub_f32(a: u32, b: u32) -> u32 {
    return bitcast<u32>(first_operand(a) - second_operand(b));
}
fn mul_f32(a: u32, b: u32) -> u32 {
    return bitcast<u32>(first_operand(a) * second_operand(b));
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
        let v4 = mul_f32(v2, 0x4b800000u);
        let v5 = le_f32(abs_f32(v3), 0x800000u) & lt_f32(abs_f32(fma_f32(v4, 0x3f22f983u, 0x57400000u)), 0xc800000u);
        let v6 = select_f32(v5, copysign_f32(0u, v3), v3);
        let v7 = flush_f32(sub_f32(v6, 0x4b400000u));
        let v8 = fma_f32(v7, 0xbfc90fdbu, v2);
        let v9 = mul_f32(v7, 0x4b800000u);
        let v10 = le_f32(abs_f32(v8), 0x800000u) & lt_f32(abs_f32(fma_f32(v9, 0xbfc90fdbu, v4)), 0xc800000u);
        let v11 = select_f32(v10, copysign_f32(0u, v8), v8);
        let v12 = fma_f32(v7, 0x333bbd2eu, v11);
        let v13 = lt_f32(abs_f32(fma_f32(v9, 0x333bbd2eu, mul_f32(v11, 0x4b800000u))), 0xc800000u);
        let v14 = select_f32(le_f32(abs_f32(v12), 0x800000u) & v13, copysign_f32(0u, v12), v12);
        var_sin_r = v14 + (params.z0 - params.z1);
        let v15 = flush_f32(sub_f32(v11, v14));
        let v16 = fma_f32(v7, 0x333bbd2eu, v15);
        let v17 = lt_f32(abs_f32(fma_f32(v9, 0x333bbd2eu, mul_f32(v15, 0x4b800000u))), 0xc800000u);
        let v18 = select_f32(le_f32(abs_f32(v16), 0x800000u) & v17, copysign_f32(0u, v16), v16);
        let v19 = fma_f32(v7, 0x26f72cedu, v18);
        let v20 = lt_f32(abs_f32(fma_f32(v9, 0x26f72cedu, mul_f32(v18, 0x4b800000u))), 0xc800000u);
        let v21 = select_f32(le_f32(abs_f32(v19), 0x800000u) & v20, copysign_f32(0u, v19), v19);
        var_sin_l = v21 + (params.z0 - params.z1);
        var_sin_n = quiet_f32(v6) + (params.z0 - params.z1);
        let v22 = mul_f32(v7, 0x34400000u);
        let v23 = le_f32(abs_f32(v22), 0x800000u) & lt_f32(abs_f32(mul_f32(v9, 0x34400000u)), 0xc800000u);
        let v24 = select_f32(v23, copysign_f32(0u, v22), v22);
        let v25 = mul_f32(v24, v24);
        let v26 = le_f32(abs_f32(v25), 0x800000u) & lt_f32(abs_f32(mul_f32(mul_f32(v24, 0x4b800000u), v24)), 0xc800000u);
        let v27 = select_f32(v26, copysign_f32(0u, v25), v25);
        let v28 = mul_f32(v14, v14);
        let v29 = le_f32(abs_f32(v28), 0x800000u) & lt_f32(abs_f32(mul_f32(mul_f32(v14, 0x4b800000u), v14)), 0xc800000u);
        let v30 = le_f32(v27, select_f32(v29, copysign_f32(0u, v28), v28)) & lt_f32(v27, 0x39800000u);
        if (!v30) {
            let v31 = quiet_f32(abs_f32(v2));
            let v32 = (v31 & 0x7fffffu) | 0x800000u;
            let v33 = (v31 >> 23u) - 120u;
            let v34 = (v33 & 128u) != 0u;
            let v35 = select_u32(v34, 0x3c439041u, 0x4e441529u);
            let v36 = select_u32(v34, 0xfe5163abu, 0xfc2757d1u);
            let v37 = (v33 & 64u) != 0u;
            let v38 = select_u32(v37, v36, select_u32(v34, 0xdb629599u, 0xa2f9836eu));
            let v39 = select_u32(v37, 0xf534ddc0u, v35);
            let v40 = select_u32(v37, 0xdb629599u, v36);
            let v41 = (v33 & 32u) != 0u;
            let v42 = select_u32(v41, v38, select_u32(v37, v35, select_u32(v34, 0xf534ddc0u, 0u)));
            let v43 = select_u32(v41, v39, v38);
            let v44 = select_u32(v41, v40, v39);
            let v45 = v33 & 31u;
            let v46 = v45 & 31u;
            let v47 = (31u - v45) & 31u;
            let v48 = (v43 << v46) | ((v44 >> 1u) >> v47);
            let v49 = (select_u32(v41, select_u32(v37, 0x3c439041u, 0xf534ddc0u), v40) >> 1u) >> v47;
            let v50 = (v44 << v46) | v49;
            let v51 = v32 * v48;
            let v52 = v51 + mulhi_u32(v32, v50);
            let v53 = ((v32 * ((v42 << v46) | ((v43 >> 1u) >> v47))) + mulhi_u32(v32, v48)) + select_u32((v52 < v51), 1u, 0u);
            let v54 = v32 * v50;
            let v55 = (v53 >> 29u) & 1u;
            let v56 = 0u - v55;
            let v57 = ((v53 << 2u) | (v52 >> 30u)) ^ v56;
            let v58 = ((v52 << 2u) | (v54 >> 30u)) ^ v56;
            let v59 = countLeadingZeros(v57);
            let v60 = v59 & 31u;
            let v61 = (31u - v59) & 31u;
            let v62 = (v57 << v60) | ((v58 >> 1u) >> v61);
            let v63 = convert_u32_f32(v62 & 0xffffff00u);
            let v64 = mul_f32(v63, 0x3fc90fdbu);
            let v65 = mul_f32(v63, 0x4b800000u);
            let v66 = le_f32(abs_f32(v64), 0x800000u) & lt_f32(abs_f32(mul_f32(v65, 0x3fc90fdbu)), 0xc800000u);
            let v67 = select_f32(v66, copysign_f32(0u, v64), v64);
            let v68 = lt_f32(v2, 0u);
            let v69 = flush_f32(((95u - v59) << 23u) | ((v55 ^ select_u32(v68, 1u, 0u)) << 31u));
            let v70 = (v53 >> 30u) + v55;
            let v71 = mul_f32(v67, v69);
            let v72 = le_f32(abs_f32(v71), 0x800000u) & lt_f32(abs_f32(mul_f32(mul_f32(v67, 0x4b800000u), v69)), 0xc800000u);
            let v73 = add_f32(select_f32(v72, copysign_f32(0u, v71), v71), flush_f32(sub_f32(v2, v2)));
            let v74 = (v62 << 24u) | (((v58 << v60) | ((((v54 << 2u) ^ v56) >> 1u) >> v61)) >> 8u);
            let v75 = convert_u32_f32(v74);
            let v76 = mul_f32(v75, 0x33800000u);
            let v77 = lt_f32(abs_f32(mul_f32(mul_f32(v75, 0x4b800000u), 0x33800000u)), 0xc800000u);
            let v78 = select_f32(le_f32(abs_f32(v76), 0x800000u) & v77, copysign_f32(0u, v76), v76);
            let v79 = neg_f32(v67);
            let v80 = fma_f32(v63, 0x3fc90fdbu, v79);
            let v81 = lt_f32(abs_f32(fma_f32(v65, 0x3fc90fdbu, mul_f32(v79, 0x4b800000u))), 0xc800000u);
            let v82 = select_f32(le_f32(abs_f32(v80), 0x800000u) & v81, copysign_f32(0u, v80), v80);
            let v83 = fma_f32(v63, 0xb33bbd2eu, v82);
            let v84 = lt_f32(abs_f32(fma_f32(v65, 0xb33bbd2eu, mul_f32(v82, 0x4b800000u))), 0xc800000u);
            let v85 = select_f32(le_f32(abs_f32(v83), 0x800000u) & v84, copysign_f32(0u, v83), v83);
            let v86 = fma_f32(v78, 0x3fc90fdbu, v85);
            let v87 = fma_f32(mul_f32(v78, 0x4b800000u), 0x3fc90fdbu, mul_f32(v85, 0x4b800000u));
            let v88 = select_f32(le_f32(abs_f32(v86), 0x800000u) & lt_f32(abs_f32(v87), 0xc800000u), copysign_f32(0u, v86), v86);
            let v89 = mul_f32(v88, v69);
            let v90 = le_f32(abs_f32(v89), 0x800000u) & lt_f32(abs_f32(mul_f32(mul_f32(v88, 0x4b800000u), v69)), 0xc800000u);
            var_sin_n = select_u32(v68, 0u - v70, v70) + (params.z0 * params.z1);
            var_sin_r = flush_f32(v73) + (params.z0 * params.z1);
            var_sin_l = select_f32(v90, copysign_f32(0u, v89), v89) + (params.z0 * params.z1);
        }
        let v91 = var_sin_r;
        let v92 = var_sin_l;
        let v93 = flush_f32(add_f32(v92, v92));
        let v94 = mul_f32(v91, v93);
        let v95 = mul_f32(v91, 0x4b800000u);
        let v96 = le_f32(abs_f32(v94), 0x800000u) & lt_f32(abs_f32(mul_f32(v95, v93)), 0xc800000u);
        let v97 = select_f32(v96, copysign_f32(0u, v94), v94);
        let v98 = fma_f32(v91, v91, v97);
        let v99 = lt_f32(abs_f32(fma_f32(v95, v91, mul_f32(v97, 0x4b800000u))), 0xc800000u);
        let v100 = select_f32(le_f32(abs_f32(v98), 0x800000u) & v99, copysign_f32(0u, v98), v98);
        let v101 = fma_f32(0xb94c8e12u, v100, 0x3c088363u);
        let v102 = le_f32(abs_f32(v101), 0x800000u) & lt_f32(abs_f32(fma_f32(0xc54c8e12u, v100, 0x48088363u)), 0xc800000u);
        let v103 = select_f32(v102, copysign_f32(0u, v101), v101);
        let v104 = fma_f32(v103, v100, 0xbe2aaaa2u);
        let v105 = lt_f32(abs_f32(fma_f32(mul_f32(v103, 0x4b800000u), v100, 0xca2aaaa2u)), 0xc800000u);
        let v106 = select_f32(le_f32(abs_f32(v104), 0x800000u) & v105, copysign_f32(0u, v104), v104);
        let v107 = mul_f32(v100, v106);
        let v108 = mul_f32(v100, 0x4b800000u);
        let v109 = le_f32(abs_f32(v107), 0x800000u) & lt_f32(abs_f32(mul_f32(v108, v106)), 0xc800000u);
        let v110 = select_f32(v109, copysign_f32(0u, v107), v107);
        let v111 = fma_f32(v110, v91, v92);
        let v112 = abs_f32(fma_f32(mul_f32(v110, 0x4b800000u), v91, mul_f32(v92, 0x4b800000u)));
        let v113 = select_f32(le_f32(abs_f32(v111), 0x800000u) & lt_f32(v112, 0xc800000u), copysign_f32(0u, v111), v111);
        let v114 = var_sin_n;
        let v115 = fma_f32(0x37ccf0a5u, v100, 0xbab6060du);
        let v116 = le_f32(abs_f32(v115), 0x800000u) & lt_f32(abs_f32(fma_f32(0x43ccf0a5u, v100, 0xc6b6060du)), 0xc800000u);
        let v117 = select_f32(v116, copysign_f32(0u, v115), v115);
        let v118 = fma_f32(v117, v100, 0x3d2aaaa5u);
        let v119 = lt_f32(abs_f32(fma_f32(mul_f32(v117, 0x4b800000u), v100, 0x492aaaa5u)), 0xc800000u);
        let v120 = select_f32(le_f32(abs_f32(v118), 0x800000u) & v119, copysign_f32(0u, v118), v118);
        let v121 = fma_f32(v100, v120, 0xbf000000u);
        let v122 = le_f32(abs_f32(v121), 0x800000u) & lt_f32(abs_f32(fma_f32(v108, v120, 0xcb000000u)), 0xc800000u);
        let v123 = select_f32(v122, copysign_f32(0u, v121), v121);
        let v124 = fma_f32(v100, v123, 0x3f800000u);
        let v125 = le_f32(abs_f32(v124), 0x800000u) & lt_f32(abs_f32(fma_f32(v108, v123, 0x4b800000u)), 0xc800000u);
        let v126 = select_f32((v114 & 1u) != 0u, select_f32(v125, copysign_f32(0u, v124), v124), flush_f32(add_f32(v91, v113)));
        let v127 = select_f32(eq_f32(v2, 0u), v2, select_f32((v114 & 2u) != 0u, neg_f32(v126), v126));
        buf_out[gid_x] = quiet_f32(v127);
    }
}
