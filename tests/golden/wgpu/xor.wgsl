struct Params {
    len_a: u32,
    len_b: u32,
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
@group(0) @binding(1) var<storage, read> buf_b: array<u32>;
@group(0) @binding(2) var<storage, read_write> buf_out: array<u32>;

@compute @workgroup_size(64, 1, 1)
fn vyre_kernel(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) lid: vec3<u32>) {
    let wid_x = group.x + group.y * params.row + params.base_x;
    let gid_x = wid_x * 64u + lid.x;
    if (params.len_out > gid_x) {
        let v1 = select(0u, buf_a[select(0u, gid_x, gid_x < params.len_a)], gid_x < params.len_a);
        let v2 = select(0u, buf_b[select(0u, gid_x, gid_x < params.len_b)], gid_x < params.len_b);
        buf_out[gid_x] = v1 ^ v2;
    }
}
