#pragma OPENCL FP_CONTRACT OFF

static float join_add_f32(float a, float b)
{
    return a + b;
}

static float reduce_add_f32(const __local uint *slots)
{
    float v0 = join_add_f32(as_float(slots[0]), as_float(slots[16]));
    float v1 = join_add_f32(as_float(slots[1]), as_float(slots[17]));
    float v2 = join_add_f32(as_float(slots[2]), as_float(slots[18]));
    float v3 = join_add_f32(as_float(slots[3]), as_float(slots[19]));
    float v4 = join_add_f32(as_float(slots[4]), as_float(slots[20]));
    float v5 = join_add_f32(as_float(slots[5]), as_float(slots[21]));
    float v6 = join_add_f32(as_float(slots[6]), as_float(slots[22]));
    float v7 = join_add_f32(as_float(slots[7]), as_float(slots[23]));
    float v8 = join_add_f32(as_float(slots[8]), as_float(slots[24]));
    float v9 = join_add_f32(as_float(slots[9]), as_float(slots[25]));
    float v10 = join_add_f32(as_float(slots[10]), as_float(slots[26]));
    float v11 = join_add_f32(as_float(slots[11]), as_float(slots[27]));
    float v12 = join_add_f32(as_float(slots[12]), as_float(slots[28]));
    float v13 = join_add_f32(as_float(slots[13]), as_float(slots[29]));
    float v14 = join_add_f32(as_float(slots[14]), as_float(slots[30]));
    float v15 = join_add_f32(as_float(slots[15]), as_float(slots[31]));
    v0 = join_add_f32(v0, v8);
    v1 = join_add_f32(v1, v9);
    v2 = join_add_f32(v2, v10);
    v3 = join_add_f32(v3, v11);
    v4 = join_add_f32(v4, v12);
    v5 = join_add_f32(v5, v13);
    v6 = join_add_f32(v6, v14);
    v7 = join_add_f32(v7, v15);
    v0 = join_add_f32(v0, v4);
    v1 = join_add_f32(v1, v5);
    v2 = join_add_f32(v2, v6);
    v3 = join_add_f32(v3, v7);
    v0 = join_add_f32(v0, v2);
    v1 = join_add_f32(v1, v3);
    v0 = join_add_f32(v0, v1);
    return v0;
}

static float quiet_f32(float x)
{
    const uint bits = as_uint(x);
    return as_float((bits << 1) > (0x7f800000u << 1) ? 0x7fc00000u : bits);
}

static uint join_or_u32(uint a, uint b)
{
    return a | b;
}

static uint reduce_or_u32(const __local uint *slots)
{
    uint v0 = join_or_u32(slots[0], slots[16]);
    uint v1 = join_or_u32(slots[1], slots[17]);
    uint v2 = join_or_u32(slots[2], slots[18]);
    uint v3 = join_or_u32(slots[3], slots[19]);
    uint v4 = join_or_u32(slots[4], slots[20]);
    uint v5 = join_or_u32(slots[5], slots[21]);
    uint v6 = join_or_u32(slots[6], slots[22]);
    uint v7 = join_or_u32(slots[7], slots[23]);
    uint v8 = join_or_u32(slots[8], slots[24]);
    uint v9 = join_or_u32(slots[9], slots[25]);
    uint v10 = join_or_u32(slots[10], slots[26]);
    uint v11 = join_or_u32(slots[11], slots[27]);
    uint v12 = join_or_u32(slots[12], slots[28]);
    uint v13 = join_or_u32(slots[13], slots[29]);
    uint v14 = join_or_u32(slots[14], slots[30]);
    uint v15 = join_or_u32(slots[15], slots[31]);
    v0 = join_or_u32(v0, v8);
    v1 = join_or_u32(v1, v9);
    v2 = join_or_u32(v2, v10);
    v3 = join_or_u32(v3, v11);
    v4 = join_or_u32(v4, v12);
    v5 = join_or_u32(v5, v13);
    v6 = join_or_u32(v6, v14);
    v7 = join_or_u32(v7, v15);
    v0 = join_or_u32(v0, v4);
    v1 = join_or_u32(v1, v5);
    v2 = join_or_u32(v2, v6);
    v3 = join_or_u32(v3, v7);
    v0 = join_or_u32(v0, v2);
    v1 = join_or_u32(v1, v3);
    v0 = join_or_u32(v0, v1);
    return v0;
}

__kernel __attribute__((reqd_work_group_size(48, 1, 1)))
void vyre_kernel(
    const __global float *restrict buf_a, // slot 0: a, f32, read
    __global float *restrict buf_out,     // slot 1: out, f32, read and written
    const uint len_a,                     // elements of a
    const uint len_out,                   // elements of out
    const uint base_x,                    // first workgroup along x
    const uint base_y,                    // first workgroup along y
    const uint base_z                     // first workgroup along z
)
{
    __local uint slots[64]; // what lanes of a subgroup exchange
    const uint wid_x = (uint)get_group_id(0) + base_x;
    const uint lid_x = (uint)get_local_id(0);
    const uint gid_x = wid_x * 48u + lid_x;
    const uint lid = lid_x;
    const float one = as_float(0x3f800000u + ((base_y & base_z) >> 31)); // 1, which the compiler does not know
    const uint lane = lid % 32u;
    const uint v1 = gid_x * 2u;
    const float v2 = gid_x < len_a ? buf_a[gid_x] : 0.0f;
    const float v3 = v2 * one;
    slots[lid] = as_uint(v3);
    for (uint k = 48u + lid; k < 64u; k += 48u) { slots[k] = 2147483648u; }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    const float v4 = reduce_add_f32(slots + (lid - lane));
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (v1 < len_out) { buf_out[v1] = quiet_f32(v4); }
    slots[lid] = (uint)(v3 < 0.0f) << lane;
    for (uint k = 48u + lid; k < 64u; k += 48u) { slots[k] = 0u; }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    const uint v5 = reduce_or_u32(slots + (lid - lane));
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    const uint at6 = v1 + 1u;
    if (at6 < len_out) { buf_out[at6] = (float)v5 * one; }
}
