#pragma OPENCL EXTENSION cl_khr_fp64 : enable

static float flush_f32(float x) // a subnormal becomes zero of its sign
{
    const uint bits = as_uint(x);
    return (bits & 0x7f800000u) == 0 ? as_float(bits & 0x80000000u) : x;
}

static double div_f64(double a, double b)
{
    double found;
    asm("div.rn.f64 %0, %1, %2;" : "=d"(found) : "d"(a), "d"(b));
    return found;
}

static double add_f64(double a, double b)
{
    double found;
    asm("add.rn.f64 %0, %1, %2;" : "=d"(found) : "d"(a), "d"(b));
    return found;
}

static float mul_f32(float a, float b)
{
    float found;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

static float quiet_f32(float x)
{
    const uint bits = as_uint(x);
    return as_float((bits << 1) > (0x7f800000u << 1) ? 0x7fc00000u : bits);
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void vyre_kernel(
    const __global double *restrict buf_x, // slot 0: x, f64, read
    const __global float *restrict buf_y,  // slot 1: y, f32, read
    __global float *restrict buf_out,      // slot 2: out, f32, read and written
    const uint len_x,                      // elements of x
    const uint len_y,                      // elements of y
    const uint len_out,                    // elements of out
    const uint base_x,                     // first workgroup along x
    const uint base_y,                     // first workgroup along y
    const uint base_z                      // first workgroup along z
)
{
    const uint wid_x = (uint)get_group_id(0) + base_x;
    const uint lid_x = (uint)get_local_id(0);
    const uint gid_x = wid_x * 64u + lid_x;
    const float zero = as_float((base_y & base_z) >> 31); // which the compiler does not know
    if (len_out > gid_x) {
        const double v1 = gid_x < len_x ? buf_x[gid_x] : 0.0;
        const float v2 = gid_x < len_y ? buf_y[gid_x] : 0.0f;
        const float v3 = flush_f32(v2);
        const double v4 = add_f64(div_f64(v1, (double)v3), 0.1);
        const float v5 = (float)v4;
        const double v6 = fabs(v4);
        const float v7 = (v6 < 1.1754943157898259e-38) ? copysign(zero, v5) : copysign(1.17549435e-38f, v5);
        const float v8 = (v6 < 1.1754943508222875e-38) ? v7 : v5;
        const float v9 = mul_f32(v8, v3);
        const bool v10 = (fabs(v9) <= 1.17549435e-38f) && (fabs(mul_f32(mul_f32(v8, 16777216.0f), v3)) < 1.9721523e-31f);
        buf_out[gid_x] = quiet_f32(v10 ? copysign(zero, v9) : v9);
    }
}
