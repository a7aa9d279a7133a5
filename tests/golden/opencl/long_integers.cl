#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void vyre_kernel(
    const __global ulong *restrict buf_a, // slot 0: a, u64, read
    __global ulong *restrict buf_out,     // slot 1: out, u64, read and written
    const uint len_a,                     // elements of a
    const uint len_out,                   // elements of out
    const uint base_x,                    // first workgroup along x
    const uint base_y,                    // first workgroup along y
    const uint base_z                     // first workgroup along z
)
{
    const uint wid_x = (uint)get_group_id(0) + base_x;
    const uint lid_x = (uint)get_local_id(0);
    const uint gid_x = wid_x * 64u + lid_x;
    const ulong v1 = gid_x < len_a ? buf_a[gid_x] : 0ul;
    if (gid_x < len_out) { buf_out[gid_x] = ((v1 * 6364136223846793005ul) + (ulong)gid_x) >> 33ul; }
}
