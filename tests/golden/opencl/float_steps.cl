#pragma OPENCL FP_CONTRACT OFF

static float quiet_f32(float x)
{
    const uint bits = as_uint(x);
    return as_float((bits << 1) > (0x7f800000u << 1) ? 0x7fc00000u : bits);
}

static float min_f32(float a, float b) // the other one for a NaN; -0 is below +0
{
    const float found = a < b ? a : b;
    const float zero = as_float(as_uint(a) | as_uint(b));
    return b != b ? a : a == b ? zero : found;
}

static float floor_f32(float x)
{
    return x != x ? x : floor(x);
}

static int i32_of_f32(float x) // saturates; a NaN is 0
{
    return x >= 2147483648.0f ? 0x7fffffff : x <= -2147483648.0f ? -0x7fffffff - 1 : x == x ? (int)x : 0;
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void vyre_kernel(
    const __global float *restrict buf_x, // slot 0: x, f32, read
    const __global float *restrict buf_y, // slot 1: y, f32, read
    __global float *restrict buf_out,     // slot 2: out, f32, read and written
    const uint len_x,                     // elements of x
    const uint len_y,                     // elements of y
    const uint len_out,                   // elements of out
    const uint base_x,                    // first workgroup along x
    const uint base_y,                    // first workgroup along y
    const uint base_z                     // first workgroup along z
)
{
    const uint wid_x = (uint)get_group_id(0) + base_x;
    const uint lid_x = (uint)get_local_id(0);
    const uint gid_x = wid_x * 64u + lid_x;
    const float one = as_float(0x3f800000u + ((base_y & base_z) >> 31)); // 1, which the compiler does not know
    const uint v1 = gid_x * 7u;
    const float v2 = gid_x < len_x ? buf_x[gid_x] : 0.0f;
    const float v3 = v2 * one;
    const float v4 = gid_x < len_y ? buf_y[gid_x] : 0.0f;
    const float v5 = v4 * one;
    if (v1 < len_out) { buf_out[v1] = quiet_f32(fma(v3, v5, (0.5f * one))); }
    const uint at6 = v1 + 1u;
    if (at6 < len_out) { buf_out[at6] = quiet_f32(v3 / v5); }
    const uint at7 = v1 + 2u;
    if (at7 < len_out) { buf_out[at7] = quiet_f32(sqrt(v3)); }
    const uint at8 = v1 + 3u;
    if (at8 < len_out) { buf_out[at8] = quiet_f32(min_f32(v3, v5)); }
    const float v9 = fabs(v3);
    const float v10 = floor_f32(v9);
    const float v11 = quiet_f32(copysign(((v9 - v10) >= (0.5f * one)) ? (v10 + (1.0f * one)) : v10, v3));
    const uint at12 = v1 + 4u;
    if (at12 < len_out) { buf_out[at12] = v11; }
    const uint at13 = v1 + 5u;
    if (at13 < len_out) { buf_out[at13] = quiet_f32((v3 < v5) ? ((-1.0f) * one) : 0.0f); }
    const uint at14 = v1 + 6u;
    if (at14 < len_out) { buf_out[at14] = (float)i32_of_f32(v3) * one; }
}
