#ifndef POLYFMA_ARITHMETIC
#define POLYFMA_ARITHMETIC
/* BF16, FP16 and FP32 arithmetic on bit patterns, one rounding an operation, as the GPU's packed instructions do it.
   Needs C99 with IEEE double and float and round to nearest; compile without -ffast-math. A NaN result is 7fff. */
#ifdef __FAST_MATH__
#error "polyfma needs IEEE arithmetic: compile without -ffast-math"
#endif
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define PF_UNUSED __attribute__((unused))
#else
#define PF_UNUSED
#endif
typedef struct { int precision, emin; uint32_t infinity, sign; } pf_format;
PF_UNUSED static const pf_format pf_bf16 = {8, -126, 0x7f80u, 0x8000u};
PF_UNUSED static const pf_format pf_fp16 = {11, -14, 0x7c00u, 0x8000u};
PF_UNUSED static const pf_format pf_fp32 = {24, -126, 0x7f800000u, 0x80000000u};

PF_UNUSED static inline int pf_is_nan(pf_format f, uint32_t a) { return (a & (f.sign - 1u)) > f.infinity; }

PF_UNUSED static inline double pf_decode(pf_format f, uint32_t bits) {
  const uint32_t magnitude = bits & (f.sign - 1u);
  const int stored = f.precision - 1, biased = (int)(magnitude >> stored);
  const double significand = (double)(magnitude & ((1u << stored) - 1u));
  double value;
  if (magnitude > f.infinity) return NAN;
  if (magnitude == f.infinity) value = INFINITY;
  else if (biased == 0) value = ldexp(significand, f.emin - stored);
  else value = ldexp(significand + ldexp(1.0, stored), f.emin + biased - 1 - stored);
  return (bits & f.sign) ? -value : value;
}

/* Nearest pattern, ties to even. A value that is not exact must have been rounded to odd. */
PF_UNUSED static inline uint32_t pf_encode(pf_format f, double value) {
  const uint32_t sign = signbit(value) ? f.sign : 0u;
  const int stored = f.precision - 1;
  int exponent;
  double count;
  uint32_t bits;
  if (isnan(value)) return f.sign - 1u;
  value = fabs(value);
  if (isinf(value)) return sign | f.infinity;
  if (value == 0) return sign;
  (void)frexp(value, &exponent);
  exponent = exponent - 1 < f.emin ? f.emin : exponent - 1;
  if (exponent > 200) return sign | f.infinity;
  count = nearbyint(ldexp(value, stored - exponent));
  bits = ((uint32_t)(exponent - f.emin) << stored) + (uint32_t)count;
  return sign | (bits > f.infinity ? f.infinity : bits);
}

/* a + b rounded to odd in double: what is rounded again to a format of at most 51 bits is then rounded once. */
PF_UNUSED static inline double pf_add_to_odd(double a, double b) {
  const double sum = a + b, b_part = sum - a, rest = (a - (sum - b_part)) + (b - b_part);
  uint64_t bits;
  double odd;
  if (!(fabs(sum) < INFINITY) || rest == 0) return sum;
  memcpy(&bits, &sum, sizeof bits);
  if (!(bits & 1u)) bits = (rest > 0) == (sum > 0) ? bits + 1u : bits - 1u;
  memcpy(&odd, &bits, sizeof odd);
  return odd;
}

PF_UNUSED static inline uint32_t pf_fma(pf_format f, uint32_t a, uint32_t b, uint32_t c) {
  return pf_encode(f, pf_add_to_odd(pf_decode(f, a) * pf_decode(f, b), pf_decode(f, c)));
}
PF_UNUSED static inline uint32_t pf_mul(pf_format f, uint32_t a, uint32_t b) { return pf_encode(f, pf_decode(f, a) * pf_decode(f, b)); }
PF_UNUSED static inline uint32_t pf_add(pf_format f, uint32_t a, uint32_t b) { return pf_encode(f, pf_add_to_odd(pf_decode(f, a), pf_decode(f, b))); }
PF_UNUSED static inline uint32_t pf_sub(pf_format f, uint32_t a, uint32_t b) { return pf_encode(f, pf_add_to_odd(pf_decode(f, a), -pf_decode(f, b))); }
PF_UNUSED static inline uint32_t pf_relu(pf_format f, uint32_t a) { return pf_is_nan(f, a) ? f.sign - 1u : (a & f.sign) ? 0u : a; }
PF_UNUSED static inline uint32_t pf_abs(pf_format f, uint32_t a) { return pf_is_nan(f, a) ? f.sign - 1u : a & (f.sign - 1u); }
PF_UNUSED static inline uint32_t pf_neg(pf_format f, uint32_t a) { return pf_is_nan(f, a) ? f.sign - 1u : a ^ f.sign; }
PF_UNUSED static inline uint32_t pf_copysign(pf_format f, uint32_t magnitude, uint32_t sign) {
  return (magnitude & (f.sign - 1u)) | (sign & f.sign);
}

/* Order of the values; -0 is below +0. */
PF_UNUSED static inline int64_t pf_order(pf_format f, uint32_t a) { return (a & f.sign) ? -(int64_t)(a - f.sign) - 1 : (int64_t)a; }
PF_UNUSED static inline uint32_t pf_extreme(pf_format f, uint32_t a, uint32_t b, int larger, int nan_wins) {
  const int a_nan = pf_is_nan(f, a), b_nan = pf_is_nan(f, b);
  if ((a_nan && b_nan) || (nan_wins && (a_nan || b_nan))) return f.sign - 1u;
  if (a_nan) return b;
  if (b_nan) return a;
  return (pf_order(f, a) < pf_order(f, b)) != larger ? a : b;
}
PF_UNUSED static inline uint32_t pf_min(pf_format f, uint32_t a, uint32_t b) { return pf_extreme(f, a, b, 0, 0); }
PF_UNUSED static inline uint32_t pf_max(pf_format f, uint32_t a, uint32_t b) { return pf_extreme(f, a, b, 1, 0); }
PF_UNUSED static inline uint32_t pf_min_nan(pf_format f, uint32_t a, uint32_t b) { return pf_extreme(f, a, b, 0, 1); }
PF_UNUSED static inline uint32_t pf_max_nan(pf_format f, uint32_t a, uint32_t b) { return pf_extreme(f, a, b, 1, 1); }
PF_UNUSED static inline uint32_t pf_xorsign(pf_format f, uint32_t least, uint32_t a, uint32_t b) {
  return pf_is_nan(f, least) ? f.sign - 1u : least | ((a ^ b) & f.sign);
}
PF_UNUSED static inline uint32_t pf_min_xorsign_abs(pf_format f, uint32_t a, uint32_t b) {
  return pf_xorsign(f, pf_min(f, pf_abs(f, a), pf_abs(f, b)), a, b);
}
PF_UNUSED static inline uint32_t pf_min_nan_xorsign_abs(pf_format f, uint32_t a, uint32_t b) {
  return pf_xorsign(f, pf_min_nan(f, pf_abs(f, a), pf_abs(f, b)), a, b);
}
PF_UNUSED static inline uint32_t pf_fma_relu(pf_format f, uint32_t a, uint32_t b, uint32_t c) { return pf_relu(f, pf_fma(f, a, b, c)); }
PF_UNUSED static inline uint32_t pf_fma_sat(pf_format f, uint32_t a, uint32_t b, uint32_t c) {
  const uint32_t y = pf_fma(f, a, b, c);
  return pf_is_nan(f, y) ? 0u : pf_min(f, pf_relu(f, y), pf_encode(f, 1.0));
}
PF_UNUSED static inline uint32_t pf_set_ge(pf_format f, uint32_t a, uint32_t b) { return pf_decode(f, a) >= pf_decode(f, b) ? ~0u : 0u; }
PF_UNUSED static inline uint32_t pf_set_gt(pf_format f, uint32_t a, uint32_t b) { return pf_decode(f, a) > pf_decode(f, b) ? ~0u : 0u; }
PF_UNUSED static inline uint32_t pf_select(pf_format f, uint32_t mask, uint32_t a, uint32_t b) {
  (void)f;
  return (mask & a) | (~mask & b);
}
/* The fp32 value as the GPU gives it: a BF16 moved up by 16 bits, an FP16 converted; so also for NaN. */
PF_UNUSED static inline float pf_to_f32(pf_format f, uint32_t a) {
  float value;
  uint32_t bits = a << 16;
  if (f.precision == 8) { memcpy(&value, &bits, sizeof value); return value; }
  if (!pf_is_nan(f, a)) return (float)pf_decode(f, a);
  bits = 0x7fffffffu;
  memcpy(&value, &bits, sizeof value);
  return value;
}
PF_UNUSED static inline uint32_t pf_cvt(pf_format to, pf_format from, uint32_t a) { return pf_encode(to, pf_decode(from, a)); }
#endif
