#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void vyre_kernel(
    const __global uchar *restrict buf_data, // slot 0: data, u8, read
    __global uint *restrict buf_bins,        // slot 1: bins, u32, read and written
    const uint len_data,                     // elements of data
    const uint len_bins,                     // elements of bins
    const uint base_x,                       // first workgroup along x
    const uint base_y,                       // first workgroup along y
    const uint base_z                        // first workgroup along z
)
{
    const uint wid_x = (uint)get_group_id(0) + base_x;
    const uint lid_x = (uint)get_local_id(0);
    const uint gid_x = wid_x * 64u + lid_x;
    if (len_data > gid_x) {
        const uint v1 = buf_data[gid_x];
        if (v1 < len_bins) { atomic_add(&buf_bins[v1], 1u); }
    }
}
