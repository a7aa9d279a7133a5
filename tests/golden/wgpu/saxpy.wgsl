struct Params {
    len_x: u32,
    len_y: u32,
    base_x: u32,
    base_y: u32,
    base_z: u32,
    row: u32,
    z0: u32,
    z1: u32,
}
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> buf_x: array<u32>;
@group(0) @binding(1) var<storage, read_write> buf_y: array<u32>;

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
fn lt_f32(a: u32, b: u32) -> bool {
    return is_ordered(a, b) && order(a) < order(b);
}
fn le_f32(a: u32, b: u32) -> bool {
    return is_ordered(a, b) && order(a) <= order(b);
}
fn add_f32(a: u32, b: u32) -> u32 {
    return bitcast<u32>(first_operand(a) + second_operand(b));
}
fn mul_f32(a: u32, b: u32) -> u32 {
    return bitcast<u32>(first_operand(a) * second_operand(b));
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

@compute @workgroup_size(64, 1, 1)
fn vyre_kernel(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) lid: vec3<u32>) {
    let wid_x = group.x + group.y * params.row + params.base_x;
    let gid_x = wid_x * 64u + lid.x;
    if (params.len_y > gid_x) {
        let v1 = select(0u, buf_x[select(0u, gid_x, gid_x < params.len_x)], gid_x < params.len_x);
        let v2 = flush_f32(v1);
        let v3 = mul_f32(0x40200000u, v2);
        let v4 = le_f32(abs_f32(v3), 0x800000u) & lt_f32(abs_f32(mul_f32(0x4c200000u, v2)), 0xc800000u);
        let v5 = buf_y[gid_x];
        let v6 = flush_f32(add_f32(select_f32(v4, copysign_f32(0u, v3), v3), flush_f32(v5)));
        buf_y[gid_x] = quiet_f32(v6);
    }
}
