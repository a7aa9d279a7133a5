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
@group(0) @binding(1) var<storage, read_write> buf_out: array<atomic<u32>>;

fn mul_f32(a: u32, b: u32) -> u32 {
    let first = bitcast<f32>(a ^ params.z0);
    let second = bitcast<f32>(b ^ params.z1);
    let found = bitcast<u32>(first * second);
    let scaled = bitcast<u32>(first * 16777216.0);
    let large = bitcast<u32>(bitcast<f32>(scaled ^ params.z0) * second);
    return select(found, found & 0x80000000u, (large & 0x7FFFFFFFu) < 0x0C800000u);
}
fn quiet_f32(x: u32) -> u32 {
    return select(x, 0x7FC00000u, ((x & 0x7FFFFFFFu) > 0x7F800000u));
}
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

@compute @workgroup_size(64, 1, 1)
fn vyre_kernel(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) lid: vec3<u32>) {
    let wid_x = group.x + group.y * params.row + params.base_x;
    let gid_x = wid_x * 64u + lid.x;
    let v1 = select(0u, load_f16(extractBits(buf_a[select(0u, gid_x, gid_x < params.len_a) >> 1u], (gid_x & 1u) << 4u, 16u)), gid_x < params.len_a);
    if (gid_x < params.len_out) {
        atomicAnd(&buf_out[gid_x >> 1u], ~(0xffffu << ((gid_x & 1u) << 4u)));
        atomicOr(&buf_out[gid_x >> 1u], store_f16(quiet_f32(round_f16(mul_f32(v1, 0x3f000000u)))) << ((gid_x & 1u) << 4u));
    }
}
