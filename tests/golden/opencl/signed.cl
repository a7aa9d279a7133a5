#pragma OPENCL FP_CONTRACT OFF

static int mul_i32(int a, int b)
{
    return (int)((uint)a * (uint)b);
}

static int sub_i32(int a, int b)
{
    return (int)((uint)a - (uint)b);
}

static int add_i32(int a, int b)
{
    return (int)((uint)a + (uint)b);
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void vyre_kernel(
    const __global int *restrict buf_a, // slot 0: a, i32, read
    const __global int *restrict buf_b, // slot 1: b, i32, read
    __global int *restrict buf_out,     // slot 2: out, i32, read and written
    const uint len_a,                   // elements of a
    const uint len_b,                   // elements of b
    const uint len_out,                 // elements of out
    const uint base_x,                  // first workgroup along x
    const uint base_y,                  // first workgroup along y
    const uint base_z                   // first workgroup along z
)
{
    const uint wid_x = (uint)get_group_id(0) + base_x;
    const uint lid_x = (uint)get_local_id(0);
    const uint gid_x = wid_x * 64u + lid_x;
    const int v1 = gid_x < len_a ? buf_a[gid_x] : 0;
    const int v2 = gid_x < len_b ? buf_b[gid_x] : 0;
    const int v3 = sub_i32(mul_i32(v1, 3), v2);
    const int v4 = min(v2, -1);
    const bool v5 = v4 == 0;
    const int v6 = v5 ? 0 : (v3 / ((v5 || ((v3 == (-2147483647 - 1)) && (v4 == (-1)))) ? 1 : v4));
    if (gid_x < len_out) { buf_out[gid_x] = add_i32(v6, v1 >> 2u); }
}
