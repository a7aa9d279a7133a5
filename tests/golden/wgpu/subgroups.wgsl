struct Params {
    len_a: u32,
    len_out: u32,
    base_x: u32,
    base_y: u32,
    base_z: u32,
    row: u32,
    z0: u32,
    z1: u32,
}
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> buf_a: array<u32>;
@group(0) @binding(1) var<storage, read_write> buf_out: array<u32>;
var<workgroup> exchanged: array<u32, 48>;

fn lt_f32(a: u32, b: u32) -> bool {
    return (max(a & 0x7FFFFFFFu, b & 0x7FFFFFFFu) <= 0x7F800000u) & (((bitcast<i32>(a & 0x7FFFFFFFu) ^ (bitcast<i32>(a) >> 31u)) - (bitcast<i32>(a) >> 31u)) < ((bitcast<i32>(b & 0x7FFFFFFFu) ^ (bitcast<i32>(b) >> 31u)) - (bitcast<i32>(b) >> 31u)));
}
fn add_f32(a: u32, b: u32) -> u32 {
    let found = bitcast<u32>(bitcast<f32>(a ^ params.z0) + bitcast<f32>(b ^ params.z1));
    return select(found, found & 0x80000000u, (found & 0x7F800000u) == 0u);
}
fn pack_f32(sign: u32, exponent: i32, significand: u32) -> u32 {
    let e = exponent + bitcast<i32>(significand >> 24u);
    let number = (bitcast<u32>(e) << 23u) | (significand & 0x7FFFFFu);
    return sign | select(select(number, 0x7F800000u, e > 254), 0u, e < 1);
}
fn round_to_24(x: u32) -> u32 {
    return (x >> 8u) + select(0u, 1u, (x & 0xFFu) + ((x >> 8u) & 1u) > 0x80u);
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

fn subgroup_add_f32(x: u32, at: u32, lane: u32) -> u32 {
    exchanged[at] = x;
    workgroupBarrier();
    if (lane < 16u && at + 16u < 48u) {
        let a = exchanged[at];
        let b = exchanged[at + 16u];
        let t0 = add_f32(a, b);
        exchanged[at] = t0;
    }
    workgroupBarrier();
    if (lane < 8u && at + 8u < 48u) {
        let a = exchanged[at];
        let b = exchanged[at + 8u];
        let t0 = add_f32(a, b);
        exchanged[at] = t0;
    }
    workgroupBarrier();
    if (lane < 4u && at + 4u < 48u) {
        let a = exchanged[at];
        let b = exchanged[at + 4u];
        let t0 = add_f32(a, b);
        exchanged[at] = t0;
    }
    workgroupBarrier();
    if (lane < 2u && at + 2u < 48u) {
        let a = exchanged[at];
        let b = exchanged[at + 2u];
        let t0 = add_f32(a, b);
        exchanged[at] = t0;
    }
    workgroupBarrier();
    if (lane < 1u && at + 1u < 48u) {
        let a = exchanged[at];
        let b = exchanged[at + 1u];
        let t0 = add_f32(a, b);
        exchanged[at] = t0;
    }
    workgroupBarrier();
    let found = exchanged[at - lane];
    workgroupBarrier();
    return found;
}

fn subgroup_or_u32(x: u32, at: u32, lane: u32) -> u32 {
    exchanged[at] = x;
    workgroupBarrier();
    if (lane < 16u && at + 16u < 48u) {
        let a = exchanged[at];
        let b = exchanged[at + 16u];
        exchanged[at] = a | b;
    }
    workgroupBarrier();
    if (lane < 8u && at + 8u < 48u) {
        let a = exchanged[at];
        let b = exchanged[at + 8u];
        exchanged[at] = a | b;
    }
    workgroupBarrier();
    if (lane < 4u && at + 4u < 48u) {
        let a = exchanged[at];
        let b = exchanged[at + 4u];
        exchanged[at] = a | b;
    }
    workgroupBarrier();
    if (lane < 2u && at + 2u < 48u) {
        let a = exchanged[at];
        let b = exchanged[at + 2u];
        exchanged[at] = a | b;
    }
    workgroupBarrier();
    if (lane < 1u && at + 1u < 48u) {
        let a = exchanged[at];
        let b = exchanged[at + 1u];
        exchanged[at] = a | b;
    }
    workgroupBarrier();
    let found = exchanged[at - lane];
    workgroupBarrier();
    return found;
}

@compute @workgroup_size(48, 1, 1)
fn vyre_kernel(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) lid: vec3<u32>, @builtin(local_invocation_index) linear: u32) {
    let wid_x = group.x + group.y * params.row + params.base_x;
    let gid_x = wid_x * 48u + lid.x;
    let lane = linear & 31u;
    let v1 = gid_x * 2u;
    let v2 = select(0u, buf_a[select(0u, gid_x, gid_x < params.len_a)], gid_x < params.len_a);
    let v3 = flush_f32(v2);
    let v4 = subgroup_add_f32(v3, linear, lane);
    if (v1 < params.len_out) { buf_out[v1] = quiet_f32(v4); }
    let v5 = subgroup_or_u32(select(0u, 1u << lane, lt_f32(v3, 0u)), linear, lane);
    let v6 = v1 + 1u;
    if (v6 < params.len_out) { buf_out[v6] = convert_u32_f32(v5); }
}
