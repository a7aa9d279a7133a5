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

fn first_operand(x: u32) -> f32 {
    return bitcast<f32>(x ^ params.z0);
}
fn second_operand(x: u32) -> f32 {
    return bitcast<f32>(x ^ params.z1);
}
fn add_f32(a: u32, b: u32) -> u32 {
    return flush_f32(bitcast<u32>(first_operand(a) + second_operand(b)));
}
fn mul_f32(a: u32, b: u32) -> u32 {
    let x = first_operand(a);
    let y = second_operand(b);
    return settled(x * y, scaled(x) * y);
}
fn scaled(x: f32) -> f32 {
    return first_operand(bitcast<u32>(x * 16777216.0));
}
fn settled(found: f32, large: f32) -> u32 {
    let bits = bitcast<u32>(found);
    return select(bits, bits & 0x80000000u, (bitcast<u32>(large) & 0x7FFFFFFFu) < 0x0C800000u);
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
        let v2 = buf_y[gid_x];
        buf_y[gid_x] = quiet_f32(add_f32(mul_f32(0x40200000u, flush_f32(v1)), flush_f32(v2)));
    }
}
