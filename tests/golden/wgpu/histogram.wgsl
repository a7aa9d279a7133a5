struct Params {
    len_data: u32,
    len_bins: u32,
    base_x: u32,
    base_y: u32,
    base_z: u32,
    row: u32,
    z0: u32,
    z1: u32,
}
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> buf_data: array<u32>;
@group(0) @binding(1) var<storage, read_write> buf_bins: array<atomic<u32>>;

@compute @workgroup_size(64, 1, 1)
fn vyre_kernel(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) lid: vec3<u32>) {
    let wid_x = group.x + group.y * params.row + params.base_x;
    let gid_x = wid_x * 64u + lid.x;
    if (params.len_data > gid_x) {
        let v1 = extractBits(buf_data[gid_x >> 2u], (gid_x & 3u) << 3u, 8u);
        if (v1 < params.len_bins) { atomicAdd(&buf_bins[v1], 1u); }
    }
}
