#pragma OPENCL FP_CONTRACT OFF

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void vyre_kernel(
    __global uchar *restrict buf_pixels, // slot 0: pixels, u8, read and written
    const uint len_pixels,               // elements of pixels
    const uint base_x,                   // first workgroup along x
    const uint base_y,                   // first workgroup along y
    const uint base_z                    // first workgroup along z
)
{
    const uint wid_x = (uint)get_group_id(0) + base_x;
    const uint lid_x = (uint)get_local_id(0);
    const uint gid_x = wid_x * 64u + lid_x;
    if (len_pixels > gid_x) {
        const uint v1 = buf_pixels[gid_x];
        buf_pixels[gid_x] = (uchar)(uint)(uchar)min(v1 * 2u, 255u);
    }
}
