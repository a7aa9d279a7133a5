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

fn select_u32(test: bool, a: u32, b: u32) -> u32 {
    return select(b, a + (params.z0 & params.z1), test);
}

@compute @workgroup_size(64, 1, 1)
fn vyre_kernel(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) lid: vec3<u32>) {
    let wid_x = group.x + group.y * params.row + params.base_x;
    let gid_x = wid_x * 64u + lid.x;
    var var_n: u32;
    var var_steps: u32;
    var var_more: bool;
    let v1 = select(0u, buf_a[select(0u, gid_x, gid_x < params.len_a)], gid_x < params.len_a);
    var_n = v1;
    var_steps = 0u;
    var_more = v1 > 1u;
    for (var k2 = 0u; k2 < 1000u; k2++) {
        if (!(var_more)) { break; }
        let v3 = var_n;
        let v4 = select_u32((v3 & 1u) == 1u, (v3 * 3u) + 1u, v3 / 2u);
        var_n = v4 + (params.z0 - params.z1);
        let v5 = var_steps;
        var_steps = (v5 + 1u) + (params.z0 - params.z1);
        var_more = v4 > 1u;
    }
    let v6 = var_steps;
    if (gid_x < params.len_out) { buf_out[gid_x] = v6; }
}
