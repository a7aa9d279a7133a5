typedef unsigned int uint;
static __device__ float as_float(unsigned x) { return __uint_as_float(x); }

static __device__ float flush_f32(float x) // a subnormal becomes zero of its sign
{
    float found;
    asm("add.rn.ftz.f32 %0, %1, 0f80000000;" : "=f"(found) : "f"(x));
    return found;
}

static __device__ float fma_f32(float a, float b, float c)
{
    float found;
    asm("fma.rn.ftz.f32 %0, %1, %2, %3;" : "=f"(found) : "f"(a), "f"(b), "f"(c));
    return found;
}

static __device__ float quiet_f32(float x)
{
    return x != x ? as_float(0x7fc00000u) : x;
}

static __device__ float div_f32(float a, float b)
{
    float found;
    asm("div.rn.ftz.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

static __device__ float sqrt_f32(float a)
{
    float found;
    asm("sqrt.rn.ftz.f32 %0, %1;" : "=f"(found) : "f"(a));
    return found;
}

static __device__ float min_f32(float a, float b)
{
    float found;
    asm("min.ftz.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

static __device__ float floor_f32(float x)
{
    return x != x ? x : floor(x);
}

static __device__ float sub_f32(float a, float b)
{
    float found;
    asm("sub.rn.ftz.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

static __device__ float add_f32(float a, float b)
{
    float found;
    asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

static __device__ int i32_of_f32(float x) // saturates; a NaN is 0
{
    return __float2int_rz(x);
}

extern "C" __global__ void __launch_bounds__(64)
vyre_kernel(
    const float *__restrict__ buf_x, // slot 0: x, f32, read
    const float *__restrict__ buf_y, // slot 1: y, f32, read
    float *__restrict__ buf_out,     // slot 2: out, f32, read and written
    const uint len_x,                // elements of x
    const uint len_y,                // elements of y
    const uint len_out,              // elements of out
    const uint base_x,               // first workgroup along x
    const uint base_y,               // first workgroup along y
    const uint base_z                // first workgroup along z
)
{
    const uint wid_x = (uint)blockIdx.x + base_x;
    const uint lid_x = (uint)threadIdx.x;
    const uint gid_x = wid_x * 64u + lid_x;
    const float zero = as_float((base_y & base_z) >> 31); // which the compiler does not know
    const uint v1 = gid_x * 7u;
    const float v2 = gid_x < len_x ? buf_x[gid_x] : 0.0f;
    const float v3 = flush_f32(v2);
    const float v4 = gid_x < len_y ? buf_y[gid_x] : 0.0f;
    const float v5 = flush_f32(v4);
    if (v1 < len_out) { buf_out[v1] = quiet_f32(fma_f32(v3, v5, 0.5f)); }
    const uint at6 = v1 + 1u;
    if (at6 < len_out) { buf_out[at6] = quiet_f32(div_f32(v3, v5)); }
    const uint at7 = v1 + 2u;
    if (at7 < len_out) { buf_out[at7] = quiet_f32(sqrt_f32(v3)); }
    const uint at8 = v1 + 3u;
    if (at8 < len_out) { buf_out[at8] = quiet_f32(min_f32(v3, v5)); }
    const float v9 = fabs(v3);
    const float v10 = floor_f32(v9);
    const float v11 = quiet_f32(copysign((sub_f32(v9, v10) >= 0.5f) ? add_f32(v10, 1.0f) : v10, v3));
    const uint at12 = v1 + 4u;
    if (at12 < len_out) { buf_out[at12] = v11; }
    const uint at13 = v1 + 5u;
    if (at13 < len_out) { buf_out[at13] = quiet_f32((v3 < v5) ? (-1.0f) : zero); }
    const uint at14 = v1 + 6u;
    if (at14 < len_out) { buf_out[at14] = (float)i32_of_f32(v3); }
}
