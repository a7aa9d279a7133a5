#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void vyre_kernel(
    const __global uint *restrict buf_a, // slot 0: a, u32, read
    __global uint *restrict buf_out,     // slot 1: out, u32, read and written
    const uint len_a,                    // elements of a
    const uint len_out,                  // elements of out
    const uint base_x,                   // first workgroup along x
    const uint base_y,                   // first workgroup along y
    const uint base_z,                   // first workgroup along z
    const volatile __global uint *stop   // not zero: end soon
)
{
    const uint wid_x = (uint)get_group_id(0) + base_x;
    const uint lid_x = (uint)get_local_id(0);
    const uint gid_x = wid_x * 64u + lid_x;
    if (*stop != 0u) { return; }
    uint turns = 0u; // of all loops
    uint var_n = 0u;
    uint var_steps = 0u;
    bool var_more = false;
    const uint v1 = gid_x < len_a ? buf_a[gid_x] : 0u;
    var_n = v1;
    var_steps = 0u;
    var_more = v1 > 1u;
    for (uint i2 = 0u; i2 < 1000u && var_more; ++i2) {
        if ((++turns & 1023u) == 0u && *stop != 0u) { return; }
        const uint v3 = var_n;
        const uint v4 = ((v3 & 1u) == 1u) ? ((v3 * 3u) + 1u) : (v3 / 2u);
        var_n = v4;
        const uint v5 = var_steps;
        var_steps = v5 + 1u;
        var_more = v4 > 1u;
    }
    const uint v6 = var_steps;
    if (gid_x < len_out) { buf_out[gid_x] = v6; }
}
