typedef unsigned int uint;
static __device__ float as_float(unsigned x) { return __uint_as_float(x); }

static __device__ float flush_f32(float x) // a subnormal becomes zero of its sign
{
    float found;
    asm("add.rn.ftz.f32 %0, %1, 0f80000000;" : "=f"(found) : "f"(x));
    return found;
}

static __device__ float quiet_f32(float x)
{
    return x != x ? as_float(0x7fc00000u) : x;
}

static __device__ float add_f32(float a, float b)
{
    float found;
    asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

extern "C" __global__ void __launch_bounds__(64)
vyre_kernel(
    const float *__restrict__ buf_a, // slot 0: a, f32, read
    float *__restrict__ buf_sums,    // slot 1: sums, f32, read and written
    const uint len_a,                // elements of a
    const uint len_sums,             // elements of sums
    const uint base_x,               // first workgroup along x
    const uint base_y,               // first workgroup along y
    const uint base_z                // first workgroup along z
)
{
    __shared__ float buf_mem[64]; // f32
    const uint wid_x = (uint)blockIdx.x + base_x;
    const uint lid_x = (uint)threadIdx.x;
    const uint gid_x = wid_x * 64u + lid_x;
    const uint lid = lid_x;
    for (uint k = lid; k < 64u; k += 64u) { buf_mem[k] = 0; }
    __syncthreads();
    const float v1 = gid_x < len_a ? buf_a[gid_x] : 0.0f;
    buf_mem[lid_x] = quiet_f32(flush_f32(v1));
    __syncthreads();
    for (uint i2 = 0u; i2 < 6u; ++i2) {
        const uint v3 = 32u >> (i2 & 31u);
        if (v3 > lid_x) {
            const float v4 = buf_mem[lid_x];
            const uint at6 = lid_x + v3;
            const float v5 = buf_mem[at6];
            buf_mem[lid_x] = quiet_f32(add_f32(v4, v5));
        }
        __syncthreads();
    }
    if (lid_x == 0u) {
        const float v7 = buf_mem[0u];
        if (wid_x < len_sums) { buf_sums[wid_x] = quiet_f32(v7); }
    }
}
