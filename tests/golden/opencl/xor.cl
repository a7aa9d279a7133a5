#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void vyre_kernel(
    const __global uint *restrict buf_a, // slot 0: a, u32, read
    const __global uint *restrict buf_b, // slot 1: b, u32, read
    __global uint *restrict buf_out,     // slot 2: out, u32, read and written
    const uint len_a,                    // elements of a
    const uint len_b,                    // elements of b
    const uint len_out,                  // elements of out
    const uint base_x,                   // first workgroup along x
    const uint base_y,                   // first workgroup along y
    const uint base_z                    // first workgroup along z
)
{
    const uint wid_x = (uint)get_group_id(0) + base_x;
    const uint lid_x = (uint)get_local_id(0);
    const uint gid_x = wid_x * 64u + lid_x;
    if (len_out > gid_x) {
        const uint v1 = gid_x < len_a ? buf_a[gid_x] : 0u;
        const uint v2 = gid_x < len_b ? buf_b[gid_x] : 0u;
        buf_out[gid_x] = v1 ^ v2;
    }
}
