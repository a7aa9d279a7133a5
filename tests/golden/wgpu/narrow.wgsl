struct Params {
    len_pixels: u32,
    base_x: u32,
    base_y: u32,
    base_z: u32,
    row: u32,
    z0: u32,
    z1: u32,
}
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> buf_pixels: array<atomic<u32>>;

fn narrow_u8(x: u32) -> u32 {
    return x & 0xFFu;
}

@compute @workgroup_size(64, 1, 1)
fn vyre_kernel(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) lid: vec3<u32>) {
    let wid_x = group.x + group.y * params.row + params.base_x;
    let gid_x = wid_x * 64u + lid.x;
    if (params.len_pixels > gid_x) {
        let v1 = extractBits(atomicLoad(&buf_pixels[gid_x >> 2u]), (gid_x & 3u) << 3u, 8u);
        atomicAnd(&buf_pixels[gid_x >> 2u], ~(0xffu << ((gid_x & 3u) << 3u)));
        atomicOr(&buf_pixels[gid_x >> 2u], narrow_u8(min(v1 * 2u, 255u)) << ((gid_x & 3u) << 3u));
    }
}
