#pragma OPENCL FP_CONTRACT OFF

static float quiet_f32(float x)
{
    const uint bits = as_uint(x);
    return as_float((bits << 1) > (0x7f800000u << 1) ? 0x7fc00000u : bits);
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void vyre_kernel(
    const __global float *restrict buf_x, // slot 0: x, f32, read
    __global float *restrict buf_out,     // slot 1: out, f32, read and written
    const uint len_x,                     // elements of x
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
    float var_sin_r = 0.0f;
    float var_sin_l = 0.0f;
    uint var_sin_n = 0u;
    if (len_out > gid_x) {
        const float v1 = gid_x < len_x ? buf_x[gid_x] : 0.0f;
        const float v2 = v1 * one;
        const float v3 = fma(v2, (0.63661975f * one), (12582912.0f * one));
        const float v4 = v3 - (12582912.0f * one);
        const float v5 = fma(v4, ((-1.5707964f) * one), v2);
        const float v6 = fma(v4, (4.3711388e-08f * one), v5);
        var_sin_r = v6;
        const float v7 = fma(v4, (1.7151245e-15f * one), fma(v4, (4.3711388e-08f * one), (v5 - v6)));
        var_sin_l = v7;
        var_sin_n = as_uint(quiet_f32(v3));
        const float v8 = v4 * (1.7881393e-07f * one);
        const float v9 = v8 * v8;
        if (!((v9 <= (v6 * v6)) && (v9 < (0.000244140625f * one)))) {
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
            const float v41 = (float)(v40 & 4294967040u) * one;
            const float v42 = v41 * (1.5707964f * one);
            const bool v43 = v2 < 0.0f;
            const float v44 = as_float(((95u - v37) << 23u) | ((v33 ^ (v43 ? 1u : 0u)) << 31u)) * one;
            const uint v45 = (v31 >> 30u) + v33;
            const uint v46 = (v40 << 24u) | (((v36 << v38) | ((((v32 << 2u) ^ v34) >> 1u) >> v39)) >> 8u);
            const float v47 = fma(v41, ((-4.3711388e-08f) * one), fma(v41, (1.5707964f * one), (-v42)));
            const float v48 = fma((((float)v46 * one) * (5.9604645e-08f * one)), (1.5707964f * one), v47);
            var_sin_n = v43 ? (0u - v45) : v45;
            var_sin_r = (v42 * v44) + (v2 - v2);
            var_sin_l = v48 * v44;
        }
        const float v49 = var_sin_r;
        const float v50 = var_sin_l;
        const float v51 = fma(v49, v49, (v49 * (v50 + v50)));
        const float v52 = fma(fma(((-0.00019507881f) * one), v51, (0.008332106f * one)), v51, ((-0.16666654f) * one));
        const uint v53 = var_sin_n;
        const float v54 = fma(fma((2.4430754e-05f * one), v51, ((-0.0013887301f) * one)), v51, (0.041666646f * one));
        const float v55 = ((v53 & 1u) != 0u) ? fma(v51, fma(v51, v54, ((-0.5f) * one)), (1.0f * one)) : (v49 + fma((v51 * v52), v49, v50));
        buf_out[gid_x] = quiet_f32((v2 == 0.0f) ? v2 : (((v53 & 2u) != 0u) ? (-v55) : v55));
    }
}
