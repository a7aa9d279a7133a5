#pragma OPENCL FP_CONTRACT OFF

static float flush_f32(float x) // a subnormal becomes zero of its sign
{
    const uint bits = as_uint(x);
    return (bits & 0x7f800000u) == 0 ? as_float(bits & 0x80000000u) : x;
}

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
    float var_sin_r = 0.0f;
    float var_sin_l = 0.0f;
    uint var_sin_n = 0u;
    if (len_out > gid_x) {
        const float v1 = gid_x < len_x ? buf_x[gid_x] : 0.0f;
        const float v2 = flush_f32(v1);
        const float v3 = fma(v2, 0.63661975f, 12582912.0f);
        const float v4 = v3 - 12582912.0f;
        const float v5 = fma(v4, (-1.5707964f), v2);
        const float v6 = fma(v4, 4.3711388e-08f, v5);
        var_sin_r = v6;
        var_sin_l = fma(v4, 1.7151245e-15f, fma(v4, 4.3711388e-08f, (v5 - v6)));
        var_sin_n = as_uint(quiet_f32(v3));
        const float v7 = v4 * 1.7881393e-07f;
        const float v8 = v7 * v7;
        if (!((v8 <= (v6 * v6)) && (v8 < 0.000244140625f))) {
            const uint v9 = as_uint(quiet_f32(fabs(v2)));
            const uint v10 = (v9 & 8388607u) | 8388608u;
            const uint v11 = (v9 >> 23u) - 120u;
            const bool v12 = (v11 & 128u) != 0u;
            const uint v13 = v12 ? 1011060801u : 1313084713u;
            const uint v14 = v12 ? 4266746795u : 4230436817u;
            const bool v15 = (v11 & 64u) != 0u;
            const uint v16 = v15 ? v14 : (v12 ? 3680671129u : 2734261102u);
            const uint v17 = v15 ? 4113882560u : v13;
            const uint v18 = v15 ? 3680671129u : v14;
            const bool v19 = (v11 & 32u) != 0u;
            const uint v20 = v19 ? v17 : v16;
            const uint v21 = v19 ? v18 : v17;
            const uint v22 = v11 & 31u;
            const uint v23 = v22 & 31u;
            const uint v24 = (31u - v22) & 31u;
            const uint v25 = ((v19 ? v16 : (v15 ? v13 : (v12 ? 4113882560u : 0u))) << v23) | ((v20 >> 1u) >> v24);
            const uint v26 = (v20 << v23) | ((v21 >> 1u) >> v24);
            const uint v27 = (v21 << v23) | (((v19 ? (v15 ? 1011060801u : 4113882560u) : v18) >> 1u) >> v24);
            const uint v28 = v10 * v26;
            const uint v29 = v28 + mul_hi(v10, v27);
            const uint v30 = ((v10 * v25) + mul_hi(v10, v26)) + ((v29 < v28) ? 1u : 0u);
            const uint v31 = v10 * v27;
            const uint v32 = (v30 >> 29u) & 1u;
            const uint v33 = 0u - v32;
            const uint v34 = ((v30 << 2u) | (v29 >> 30u)) ^ v33;
            const uint v35 = ((v29 << 2u) | (v31 >> 30u)) ^ v33;
            const uint v36 = clz(v34);
            const uint v37 = v36 & 31u;
            const uint v38 = (31u - v36) & 31u;
            const uint v39 = (v34 << v37) | ((v35 >> 1u) >> v38);
            const float v40 = (float)(v39 & 4294967040u);
            const float v41 = v40 * 1.5707964f;
            const bool v42 = v2 < 0.0f;
            const float v43 = flush_f32(as_float(((95u - v36) << 23u) | ((v32 ^ (v42 ? 1u : 0u)) << 31u)));
            const uint v44 = (v30 >> 30u) + v32;
            const uint v45 = (v39 << 24u) | (((v35 << v37) | ((((v31 << 2u) ^ v33) >> 1u) >> v38)) >> 8u);
            const float v46 = fma(((float)v45 * 5.9604645e-08f), 1.5707964f, fma(v40, (-4.3711388e-08f), fma(v40, 1.5707964f, (-v41))));
            var_sin_n = v42 ? (0u - v44) : v44;
            var_sin_r = (v41 * v43) + (v2 - v2);
            var_sin_l = v46 * v43;
        }
        const float v47 = var_sin_r;
        const float v48 = var_sin_l;
        const float v49 = fma(v47, v47, (v47 * (v48 + v48)));
        const float v50 = v49 * fma(fma((-0.00019507881f), v49, 0.008332106f), v49, (-0.16666654f));
        const uint v51 = var_sin_n;
        const float v52 = fma(v49, fma(fma(2.4430754e-05f, v49, (-0.0013887301f)), v49, 0.041666646f), (-0.5f));
        const float v53 = ((v51 & 1u) != 0u) ? fma(v49, v52, 1.0f) : (v47 + fma(v50, v47, v48));
        buf_out[gid_x] = quiet_f32((v2 == 0.0f) ? v2 : (((v51 & 2u) != 0u) ? (-v53) : v53));
    }
}
