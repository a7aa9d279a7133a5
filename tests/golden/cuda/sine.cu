typedef unsigned int uint;
typedef unsigned long long ulong;
static __device__ unsigned as_uint(float x) { return __float_as_uint(x); }
static __device__ unsigned as_uint(int x) { return (unsigned)x; }
static __device__ float as_float(unsigned x) { return __uint_as_float(x); }
template <class T> static __device__ T clz(T x) { return sizeof x == 8 ? __clzll(x) : __clz(x); }
static __device__ unsigned mul_hi(unsigned a, unsigned b) { return __umulhi(a, b); }
template <class T, int n> struct alignas(n * sizeof(T)) Pack { T at[n]; };

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

static __device__ float sub_f32(float a, float b)
{
    float found;
    asm("sub.rn.ftz.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

static __device__ float quiet_f32(float x)
{
    return x != x ? as_float(0x7fc00000u) : x;
}

static __device__ float mul_f32(float a, float b)
{
    float found;
    asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

static __device__ float add_f32(float a, float b)
{
    float found;
    asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

template <bool whole> // whether all are there, and all their elements
static __device__ __forceinline__ void several(
    const float *__restrict__ buf_x, // slot 0: x, f32, read
    float *__restrict__ buf_out,     // slot 1: out, f32, read and written
    const uint len_x,                // elements of x
    const uint len_out,              // elements of out
    const uint base_x,               // first workgroup along x
    const uint base_y,               // first workgroup along y
    const uint base_z,               // first workgroup along z
    const uint first,                // global id of the first invocation along x
    const uint most                  // how many come behind it
)
{
    const float zero = as_float((base_y & base_z) >> 31); // which the compiler does not know
    Pack<float, 4> in_x;
    if (whole) { in_x = *(const Pack<float, 4> *)(buf_x + first); }
    Pack<float, 4> out_out;
#pragma unroll (whole ? 4 : 1)
    for (uint k = 0u; k < 4u; ++k) {
        if (!whole && k > most) { break; }
        const uint gid_x = first + k;
        float var_sin_r = 0.0f;
        float var_sin_l = 0.0f;
        uint var_sin_n = 0u;
        if (whole || len_out > gid_x) {
            const float v1 = whole ? in_x.at[k] : gid_x < len_x ? buf_x[gid_x] : 0.0f;
            const float v2 = flush_f32(v1);
            const float v3 = fma_f32(v2, 0.63661975f, 12582912.0f);
            const float v4 = sub_f32(v3, 12582912.0f);
            const float v5 = fma_f32(v4, (-1.5707964f), v2);
            const float v6 = fma_f32(v4, 4.3711388e-08f, v5);
            var_sin_r = v6;
            const float v7 = fma_f32(v4, 1.7151245e-15f, fma_f32(v4, 4.3711388e-08f, sub_f32(v5, v6)));
            var_sin_l = v7;
            var_sin_n = as_uint(quiet_f32(v3));
            const float v8 = mul_f32(v4, 1.7881393e-07f);
            const float v9 = mul_f32(v8, v8);
            if (!((v9 <= mul_f32(v6, v6)) && (v9 < 0.000244140625f))) {
                const uint v10 = as_uint(quiet_f32(fabs(v2)));
                const uint v11 = (v10 & 8388607u) | 8388608u;
                const uint v12 = (v10 >> 23u) - 120u;
                const bool v13 = (v12 & 128u) != 0u;
                const uint v14 = v13 ? 1011060801u : 1313084713u;
                const uint v15 = v13 ? 4266746795u : 4230436817u;
                const bool v16 = (v12 & 64u) != 0u;
                const uint v17 = v16 ? v15 : (v13 ? 3680671129u : 2734261102u);
                const uint v18 = v16 ? 4113882560u : v14;
                const uint v19 = v16 ? 3680671129u : v15;
                const bool v20 = (v12 & 32u) != 0u;
                const uint v21 = v20 ? v18 : v17;
                const uint v22 = v20 ? v19 : v18;
                const uint v23 = v12 & 31u;
                const uint v24 = v23 & 31u;
                const uint v25 = (31u - v23) & 31u;
                const uint v26 = ((v20 ? v17 : (v16 ? v14 : (v13 ? 4113882560u : 0u))) << v24) | ((v21 >> 1u) >> v25);
                const uint v27 = (v21 << v24) | ((v22 >> 1u) >> v25);
                const uint v28 = (v22 << v24) | (((v20 ? (v16 ? 1011060801u : 4113882560u) : v19) >> 1u) >> v25);
                const uint v29 = v11 * v27;
                const uint v30 = v29 + mul_hi(v11, v28);
                const uint v31 = ((v11 * v26) + mul_hi(v11, v27)) + ((v30 < v29) ? 1u : 0u);
                const uint v32 = v11 * v28;
                const uint v33 = (v31 >> 29u) & 1u;
                const uint v34 = 0u - v33;
                const uint v35 = ((v31 << 2u) | (v30 >> 30u)) ^ v34;
                const uint v36 = ((v30 << 2u) | (v32 >> 30u)) ^ v34;
                const uint v37 = clz(v35);
                const uint v38 = v37 & 31u;
                const uint v39 = (31u - v37) & 31u;
                const uint v40 = (v35 << v38) | ((v36 >> 1u) >> v39);
                const float v41 = (float)(v40 & 4294967040u);
                const float v42 = mul_f32(v41, 1.5707964f);
                const bool v43 = v2 < zero;
                const float v44 = as_float(((95u - v37) << 23u) | ((v33 ^ (v43 ? 1u : 0u)) << 31u));
                const uint v45 = (v31 >> 30u) + v33;
                const uint v46 = (v40 << 24u) | (((v36 << v38) | ((((v32 << 2u) ^ v34) >> 1u) >> v39)) >> 8u);
                const float v47 = fma_f32(mul_f32((float)v46, 5.9604645e-08f), 1.5707964f, fma_f32(v41, (-4.3711388e-08f), fma_f32(v41, 1.5707964f, (-v42))));
                var_sin_n = v43 ? (0u - v45) : v45;
                var_sin_r = add_f32(mul_f32(v42, v44), sub_f32(v2, v2));
                var_sin_l = mul_f32(v47, v44);
            }
            const float v48 = var_sin_r;
            const float v49 = var_sin_l;
            const float v50 = fma_f32(v48, v48, mul_f32(v48, add_f32(v49, v49)));
            const float v51 = fma_f32(fma_f32((-0.00019507881f), v50, 0.008332106f), v50, (-0.16666654f));
            const uint v52 = var_sin_n;
            const float v53 = fma_f32(fma_f32(2.4430754e-05f, v50, (-0.0013887301f)), v50, 0.041666646f);
            const float v54 = ((v52 & 1u) != 0u) ? fma_f32(v50, fma_f32(v50, v53, (-0.5f)), 1.0f) : add_f32(v48, fma_f32(mul_f32(v50, v51), v48, v49));
            const float v55 = quiet_f32((v2 == zero) ? v2 : (((v52 & 2u) != 0u) ? (-v54) : v54));
            if (whole) { out_out.at[k] = v55; } else { buf_out[gid_x] = v55; }
        }
    }
    if (whole) { *(Pack<float, 4> *)(buf_out + first) = out_out; }
}

extern "C" __global__ void __launch_bounds__(128)
vyre_kernel(
    const float *__restrict__ buf_x, // slot 0: x, f32, read
    float *__restrict__ buf_out,     // slot 1: out, f32, read and written
    const uint len_x,                // elements of x
    const uint len_out,              // elements of out
    const uint base_x,               // first workgroup along x
    const uint base_y,               // first workgroup along y
    const uint base_z,               // first workgroup along z
    const uint last_x                // invocations of the launch along x, less 1
)
{
    const uint at = threadIdx.x * 4u;
    const uint last = last_x - blockIdx.x * 512u; // of the block
    if (at > last) { return; }
    const uint first = base_x * 64u + blockIdx.x * 512u + at;
    const uint most = last - at;
    const bool whole = most >= 3u
        && first + 3u < len_out
        && first + 3u < len_x
        && (ulong)(buf_x + first) % sizeof(Pack<float, 4>) == 0ull
        && (ulong)(buf_out + first) % sizeof(Pack<float, 4>) == 0ull;
    if (whole) { several<true>(buf_x, buf_out, len_x, len_out, base_x, base_y, base_z, first, most); }
    else { several<false>(buf_x, buf_out, len_x, len_out, base_x, base_y, base_z, first, most); }
}
