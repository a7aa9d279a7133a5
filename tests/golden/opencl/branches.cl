#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void vyre_kernel(
    const __global uint *restrict buf_x, // slot 0: x, u32, read
    __global uint *restrict buf_out,     // slot 1: out, u32, read and written
    const uint len_x,                    // elements of x
    const uint len_out,                  // elements of out
    const uint base_x,                   // first workgroup along x
    const uint base_y,                   // first workgroup along y
    const uint base_z                    // first workgroup along z
)
{
    __local uint buf_parts[64]; // u32
    const uint wid_x = (uint)get_group_id(0) + base_x;
    const uint lid_x = (uint)get_local_id(0);
    const uint gid_x = wid_x * 64u + lid_x;
    const uint lid = lid_x;
    for (uint k = lid; k < 64u; k += 64u) { buf_parts[k] = 0; }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    bool var_running = false;
    var_running = true;
    if (wid_x == 7u) {
        var_running = false;
    }
    const bool v1 = wid_x < 2u;
    const bool v2 = var_running;
    const bool v3 = v2 && v1;
    if (v3) {
        const uint v4 = gid_x < len_x ? buf_x[gid_x] : 0u;
        buf_parts[lid_x] = v4;
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    const uint v5 = 63u - lid_x;
    if (v3) {
        const uint v6 = buf_parts[v5];
        if (gid_x < len_out) { buf_out[gid_x] = v6; }
    }
    if (v2 && !v1) {
        if (gid_x < len_out) { buf_out[gid_x] = 1u; }
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    const bool v7 = var_running;
    if (v7) {
        const uint v8 = gid_x < len_out ? buf_out[gid_x] : 0u;
        const uint v9 = buf_parts[lid_x];
        if (gid_x < len_out) { buf_out[gid_x] = v8 + v9; }
    }
}
