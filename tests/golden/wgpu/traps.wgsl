struct Params {
    len_index: u32,
    len_table: u32,
    len_out: u32,
    base_x: u32,
    base_y: u32,
    base_z: u32,
    row: u32,
    z0: u32,
    z1: u32,
}
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> buf_index: array<u32>;
@group(0) @binding(1) var<storage, read> buf_table: array<i32>;
@group(0) @binding(2) var<storage, read_write> buf_out: array<i32>;
@group(0) @binding(3) var<storage, read_write> traps: array<atomic<u32>>;
var<workgroup> buf_mem: array<i32, 64>;

fn note_trap(code: u32, address: u32, x: u32, y: u32, z: u32) {
    let turn = atomicLoad(&traps[5]);
    let bits = atomicLoad(&traps[4]);
    let number = (z * atomicLoad(&traps[3]) + y) * atomicLoad(&traps[2]) + x;
    let first = atomicMax(&traps[0], 0u);
    if (first != 0u && first != turn) { return; }
    atomicMax(&traps[0], turn);
    atomicAdd(&traps[1], 1u);
    if (bits == 0u) { return; }
    for (var at = 0u; at < 64u; at += bits) {
        var piece = code;
        if (at < 32u) { piece = code >> at; } else { piece = address >> (at - 32u); }
        let begin = 8u + at / bits * 64u;
        var word = ~((number << bits) | (piece & ((1u << bits) - 1u)));
        if (atomicLoad(&traps[begin + 63u]) > word) { continue; }
        for (var k = 0u; k < 64u && word != 0u; k++) {
            word = min(word, atomicMax(&traps[begin + k], word));
        }
    }
}

@compute @workgroup_size(64, 1, 1)
fn vyre_kernel(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) lid: vec3<u32>, @builtin(local_invocation_index) linear: u32) {
    let wid_x = group.x + group.y * params.row + params.base_x;
    let gid_x = wid_x * 64u + lid.x;
    let wid_y = select(group.y, 0u, params.row != 0u) + params.base_y;
    let gid_y = wid_y * 1u + lid.y;
    let wid_z = group.z + params.base_z;
    let gid_z = wid_z * 1u + lid.z;
    var stopped = false;
    buf_mem[linear] = 0i;
    workgroupBarrier();
    let v1 = select(0u, buf_index[select(0u, gid_x, gid_x < params.len_index)], gid_x < params.len_index);
    if (v1 >= params.len_table) {
        if (!stopped) { note_trap(0u, gid_x, gid_x, gid_y, gid_z); }
        stopped = true;
    }
    let v2 = select(0i, buf_table[select(0u, v1, v1 < params.len_table)], v1 < params.len_table);
    buf_mem[lid.x] = v2;
    workgroupBarrier();
    let v4 = 63u - lid.x;
    let v3 = buf_mem[v4];
    if (gid_x < params.len_out) { buf_out[gid_x] = v3; }
}
