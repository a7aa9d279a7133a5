struct Params {
    len_a: u32,
    len_sums: u32,
    base_x: u32,
    base_y: u32,
    base_z: u32,
    row: u32,
    z0: u32,
    z1: u32,
}
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> buf_a: array<u32>;
@group(0) @binding(1) var<storage, read_write> buf_sums: array<u32>;
var<workgroup> buf_mem: array<u32, 64>;

fn add_f32(a: u32, b: u32) -> u32 {
    let found = bitcast<u32>(bitcast<f32>(a ^ params.z0) + bitcast<f32>(b ^ params.z1));
    return select(found, found & 0x80000000u, (found & 0x7F800000u) == 0u);
}
fn flush_f32(x: u32) -> u32 {
    return select(x, x & 0x80000000u, (x & 0x7F800000u) == 0u);
}
fn quiet_f32(x: u32) -> u32 {
    return select(x, 0x7FC00000u, ((x & 0x7FFFFFFFu) > 0x7F800000u));
}

@compute @workgroup_size(64, 1, 1)
fn vyre_kernel(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) lid: vec3<u32>, @builtin(local_invocation_index) linear: u32) {
    let wid_x = group.x + group.y * params.row + params.base_x;
    let gid_x = wid_x * 64u + lid.x;
    buf_mem[linear] = 0u;
    workgroupBarrier();
    let v1 = select(0u, buf_a[select(0u, gid_x, gid_x < params.len_a)], gid_x < params.len_a);
    buf_mem[lid.x] = quiet_f32(flush_f32(v1));
    workgroupBarrier();
    for (var k2 = 0u; k2 < 6u; k2++) {
        let v3 = 32u >> (k2 & 31u);
        if (v3 > lid.x) {
            let v4 = buf_mem[lid.x];
            let v6 = lid.x + v3;
            let v5 = buf_mem[v6];
            buf_mem[lid.x] = quiet_f32(add_f32(flush_f32(v4), flush_f32(v5)));
        }
        workgroupBarrier();
    }
    if (lid.x == 0u) {
        let v7 = buf_mem[0u];
        if (wid_x < params.len_sums) { buf_sums[wid_x] = quiet_f32(flush_f32(v7)); }
    }
}
