#pragma OPENCL FP_CONTRACT OFF

static float load_f16(ushort half_bits)
{
    const uint size = half_bits & 0x7fffu;
    const uint small = as_uint((float)size * 0x1p-24f);
    const uint found = size < 0x400u ? small : (size << 13) + (size < 0x7c00u ? 0x38000000u : 0x70000000u);
    return as_float(found | (half_bits & 0x8000u) << 16);
}

static float round_f16(float x)
{
    const uint bits = as_uint(x);
    const float size = as_float(bits & 0x7fffffffu);
    const float small = (size + 0.5f) - 0.5f; // below 2^-14 halves are 2^-24 apart, as floats from 1/2 to 1 are
    const uint large = ((bits & 0x7fffffffu) + 0xfffu + ((bits >> 13) & 1u)) & 0xffffe000u;
    const uint found = size < 0x1p-14f ? as_uint(small) : large >= 0x47800000u ? 0x7f800000u : large;
    return x != x ? x : as_float(found | (bits & 0x80000000u));
}

static float quiet_f32(float x)
{
    const uint bits = as_uint(x);
    return as_float((bits << 1) > (0x7f800000u << 1) ? 0x7fc00000u : bits);
}

static ushort store_f16(float x) // of a number that was rounded to f16
{
    const uint bits = as_uint(x);
    const uint size = bits & 0x7fffffffu;
    const uint small = (uint)(as_float(size < 0x38800000u ? size : 0u) * 0x1p24f);
    const uint large = size >= 0x47800000u ? (size > 0x7f800000u ? 0x7e00u : 0x7c00u) : (size - 0x38000000u) >> 13;
    return (ushort)((size < 0x38800000u ? small : large) | (bits >> 16 & 0x8000u));
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void vyre_kernel(
    const __global ushort *restrict buf_a, // slot 0: a, f16, read
    __global ushort *restrict buf_out,     // slot 1: out, f16, read and written
    const uint len_a,                      // elements of a
    const uint len_out,                    // elements of out
    const uint base_x,                     // first workgroup along x
    const uint base_y,                     // first workgroup along y
    const uint base_z                      // first workgroup along z
)
{
    const uint wid_x = (uint)get_group_id(0) + base_x;
    const uint lid_x = (uint)get_local_id(0);
    const uint gid_x = wid_x * 64u + lid_x;
    const float one = as_float(0x3f800000u + ((base_y & base_z) >> 31)); // 1, which the compiler does not know
    const float v1 = gid_x < len_a ? (load_f16(buf_a[gid_x]) * one) : 0.0f;
    if (gid_x < len_out) { buf_out[gid_x] = store_f16(quiet_f32(round_f16(v1 * (0.5f * one)))); }
}
