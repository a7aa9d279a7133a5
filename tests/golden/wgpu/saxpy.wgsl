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

fn add_f32(a: u32, b: u32) -> u32 {
    let found = bitcast<u32>(bitcast<f32>(a ^ params.z0) + bitcast<f32>(b ^ params.z1));
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
fn flush_f32(x: u32) -> u32 {
    return select(x, x & 0x80000000u, (x & 0x7F800000u) == 0u);
}
fn quiet_f32(x: u32) -> u32 {
    return select(x, 0x7FC00000u, ((x & 0x7FFFFFFFu) > 0x7F800000u));
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
