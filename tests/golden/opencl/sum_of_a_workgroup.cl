#pragma OPENCL FP_CONTRACT OFF

static float quiet_f32(float x)
{
    const uint bits = as_uint(x);
    return as_float((bits << 1) > (0x7f800000u << 1) ? 0x7fc00000u : bits);
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void vyre_kernel(
    const __global float *restrict buf_a, // slot 0: a, f32, read
    __global float *restrict buf_sums,    // slot 1: sums, f32, read and written
    const uint len_a,                     // elements of a
    const uint len_sums,                  // elements of sums
    const uint base_x,                    // first workgroup along x
    const uint base_y,                    // first workgroup along y
    const uint base_z                     // first workgroup along z
)
{
    __local float buf_mem[64]; // f32
    const uint wid_x = (uint)get_group_id(0) + base_x;
    const uint lid_x = (uint)get_local_id(0);
    const uint gid_x = wid_x * 64u + lid_x;
    const uint lid = lid_x;
    const float one = as_float(0x3f800000u + ((base_y & base_z) >> 31)); // 1, which the compiler does not know
    for (uint k = lid; k < 64u; k += 64u) { buf_mem[k] = 0; }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    const float v1 = gid_x < len_a ? buf_a[gid_x] : 0.0f;
    buf_mem[lid_x] = quiet_f32(v1 * one);
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    for (uint i2 = 0u; i2 < 6u; ++i2) {
        const uint v3 = 32u >> (i2 & 31u);
        if (v3 > lid_x) {
            const float v4 = buf_mem[lid_x];
            const uint at6 = lid_x + v3;
            const float v5 = buf_mem[at6];
            buf_mem[lid_x] = quiet_f32(v4 + v5);
        }
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    }
    if (lid_x == 0u) {
        const float v7 = buf_mem[0u];
        if (wid_x < len_sums) { buf_sums[wid_x] = quiet_f32(v7); }
    }
}
