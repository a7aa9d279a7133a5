#pragma OPENCL FP_CONTRACT OFF

static void note_trap(__global uint *restrict trap, uint code, uint address, uint x, uint y, uint z)
{
    const uint turn = trap[5], bits = trap[4], number = (z * trap[3] + y) * trap[2] + x;
    const uint first = atomic_cmpxchg(&trap[0], 0u, turn);
    if (first != 0u && first != turn) return; // an earlier turn has trapped
    atomic_add(&trap[1], 1u);
    for (uint at = 0u; bits != 0u && at < 64u; at += bits) {
        const uint piece = (at < 32u ? code >> at : address >> (at - 32u)) & ((1u << bits) - 1u);
        const uint begin = 8u + at / bits * 64u, end = begin + 64u;
        uint word = ~(number << bits | piece);
        if (atomic_max(&trap[end - 1u], 0u) > word) continue; // the list is full of lower numbers
        for (uint k = begin; k < end && word != 0u; k++) {
            const uint old = atomic_max(&trap[k], word);
            word = old < word ? old : word;
        }
    }
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void vyre_kernel(
    const __global uint *restrict buf_index, // slot 0: index, u32, read
    const __global int *restrict buf_table,  // slot 1: table, i32, read
    __global int *restrict buf_out,          // slot 2: out, i32, read and written
    const uint len_index,                    // elements of index
    const uint len_table,                    // elements of table
    const uint len_out,                      // elements of out
    const uint base_x,                       // first workgroup along x
    const uint base_y,                       // first workgroup along y
    const uint base_z,                       // first workgroup along z
    __global uint *restrict trap             // which invocations trapped
)
{
    __local int buf_mem[64]; // i32
    __local uint ending; // whether a lane has stopped
    const uint wid_x = (uint)get_group_id(0) + base_x;
    const uint lid_x = (uint)get_local_id(0);
    const uint gid_x = wid_x * 64u + lid_x;
    const uint wid_y = (uint)get_group_id(1) + base_y;
    const uint lid_y = (uint)get_local_id(1);
    const uint gid_y = wid_y * 1u + lid_y;
    const uint wid_z = (uint)get_group_id(2) + base_z;
    const uint lid_z = (uint)get_local_id(2);
    const uint gid_z = wid_z * 1u + lid_z;
    const uint lid = lid_x;
    for (uint k = lid; k < 64u; k += 64u) { buf_mem[k] = 0; }
    ending = 0u;
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    bool stopped = false;
    const uint v1 = gid_x < len_index ? buf_index[gid_x] : 0u;
    if (v1 >= len_table) {
        if (!stopped) note_trap(trap, 0u, gid_x, gid_x, gid_y, gid_z); // 'index out of range'
        stopped = true;
    }
    const int v2 = v1 < len_table ? buf_table[v1] : 0;
    buf_mem[lid_x] = v2;
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    const uint at4 = 63u - lid_x;
    const int v3 = buf_mem[at4];
    if (gid_x < len_out) { buf_out[gid_x] = v3; }
}
