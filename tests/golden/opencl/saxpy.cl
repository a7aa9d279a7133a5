#pragma OPENCL FP_CONTRACT OFF

static float quiet_f32(float x)
{
    const uint bits = as_uint(x);
    return as_float((bits << 1) > (0x7f800000u << 1) ? 0x7fc00000u : bits);
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void vyre_kernel(
    const __global float *restrict buf_x, // slot 0: x, f32, read
    __global float *restrict buf_y,       // slot 1: y, f32, read and written
    const uint len_x,                     // elements of x
    const uint len_y,                     // elements of y
    const uint base_x,                    // first workgroup along x
    const uint base_y,                    // first workgroup along y
    const uint base_z                     // first workgroup along z
)
{
    const uint wid_x = (uint)get_group_id(0) + base_x;
    const uint lid_x = (uint)get_local_id(0);
    const uint gid_x = wid_x * 64u + lid_x;
    const float one = as_float(0x3f800000u + ((base_y & base_z) >> 31)); // 1, which the compiler does not know
    if (len_y > gid_x) {
        const float v1 = gid_x < len_x ? buf_x[gid_x] : 0.0f;
        const float v2 = buf_y[gid_x];
        buf_y[gid_x] = quiet_f32(((2.5f * one) * v1) + (v2 * one));
    }
}
