// The plain decode step: conv update, q/k norm, gates and recurrence, one kernel each, every contract, any shape.
// Meant to be read beside docs/arithmetic.md and to be right; speed is for other kernels.
#include "launch.cuh"
#include "scalar.cuh"

namespace gdnsim::cuda {
namespace {

// ---- conv update: one thread a channel of a row (rules A2.1, C1) ----

/// acc + window * weight as the contract multiplies.
__device__ float add_product(const StepView& s, float acc, float window, float weight) {
  ConvProduct product = s.rules.conv_product;
  if (product == ConvProduct::rounded_or_fma)
    product = s.shape.conv_type == DType::f32 ? ConvProduct::fma : ConvProduct::rounded;
  if (product == ConvProduct::fma) return __fmaf_rn(window, weight, acc);
  const float each = __fmul_rn(window, weight);
  return __fadd_rn(acc, product == ConvProduct::rounded ? rounded_to(s.shape.conv_type, each) : each);
}

/// Copies one word. No arithmetic touches it: NaN payloads stay.
__device__ void copy_word(DType type, void* to, std::int64_t to_at, const void* from, std::int64_t from_at) {
  if (type == DType::f32)
    static_cast<std::uint32_t*>(to)[to_at] = static_cast<const std::uint32_t*>(from)[from_at];
  else
    static_cast<std::uint16_t*>(to)[to_at] = static_cast<const std::uint16_t*>(from)[from_at];
}

/// x in the conv state's type: copied where the types agree, widened bit by bit, or rounded.
__device__ void store_newest(const StepView& s, std::int64_t x_at, std::int64_t at) {
  const DType from = s.shape.act_type, to = s.shape.conv_type;
  if (from == to) return copy_word(to, s.pool.conv, at, s.in.mixed_qkv, x_at);
  const float x = load(from, s.in.mixed_qkv, x_at);
  if (to == DType::f32)
    static_cast<std::uint32_t*>(s.pool.conv)[at] = bits_of(x);
  else
    store(to, s.pool.conv, at, x);
}

/// The newest element of the window as arithmetic sees it: x rounded to the conv state's type.
__device__ float newest(const StepView& s, std::int64_t x_at) {
  const float x = load(s.shape.act_type, s.in.mixed_qkv, x_at);
  return s.shape.act_type == s.shape.conv_type ? x : rounded_to(s.shape.conv_type, x);
}

/// bias + sum over taps of window * weight. `column` is where the oldest column of this channel lies.
__device__ float conv_sum(const StepView& s, std::int64_t channel, std::int64_t x_at, std::int64_t column) {
  const int W = s.shape.W;
  const float bias = s.params.conv_bias != nullptr ? load(s.shape.act_type, s.params.conv_bias, channel) : 0.0f;
  float acc = s.rules.conv_bias == ConvBias::first ? bias : 0.0f;
  for (int i = 0; i < W; ++i) {
    const int tap = s.rules.conv_taps == ConvTaps::oldest_first ? i : W - 1 - i;
    const float window =
        tap == W - 1 ? newest(s, x_at) : load(s.shape.conv_type, s.pool.conv, column + tap * s.shape.dim);
    acc = add_product(s, acc, window, load(s.shape.act_type, s.params.conv_weight, channel * W + tap));
  }
  const bool bias_last = s.params.conv_bias != nullptr && s.rules.conv_bias == ConvBias::last;
  const float sum = bias_last ? __fadd_rn(acc, bias) : acc;
  return canonical(s.rules.conv_sum == ConvSum::act ? rounded_to(s.shape.act_type, sum) : sum);
}

__global__ void conv_kernel(StepView s) {
  const std::int64_t dim = s.shape.dim;
  for (std::int64_t at = first_thread(); at < s.shape.rows * dim; at += all_threads()) {
    const std::int64_t row = at / dim, channel = at % dim, block = s.in.block[row];
    if (block < 0) continue;
    const std::int64_t column = block * (s.shape.W - 1) * dim + channel;

    const float acc = conv_sum(s, channel, at, column);
    s.out.conv_acc[at] = acc;
    store(s.shape.act_type, s.out.conv_out, at, s.shape.silu ? silu(s.rules, acc) : acc);

    for (int j = 0; j + 2 < s.shape.W; ++j)
      copy_word(s.shape.conv_type, s.pool.conv, column + j * dim, s.pool.conv, column + (j + 1) * dim);
    store_newest(s, at, column + (s.shape.W - 2) * dim);
  }
}

// ---- q and k: one warp a key head of a row, q or k (rules A2.3, Q1-Q3) ----

/// How one element is normalised: divided by a root or multiplied by a reciprocal root, the same for the whole head.
struct Normaliser {
  bool multiply;
  float by;
};

template <class X>
__device__ Normaliser normaliser(const StepView& s, X x, float* scratch) {
  constexpr float eps = 1e-6f;
  const Rules& rules = s.rules;
  const float sum = dot(s.qk_order, x, x, scratch);
  if (rules.qk_eps == QkEps::max) {
    const float length = root(rules, sum);
    return {false, length < eps ? eps : length};
  }
  const float mean = rules.qk_eps == QkEps::mean ? divide(rules, sum, static_cast<float>(s.shape.K)) : sum;
  const float added = rules.qk_eps == QkEps::sum_k ? __fmul_rn(static_cast<float>(s.shape.K), eps) : eps;
  const float under_root = __fadd_rn(mean, added);
  if (rules.qk_norm == QkNorm::multiply) return {true, reciprocal_root(rules, under_root)};
  return {false, root(rules, under_root)};
}

__device__ float normalised(const Rules& rules, const Normaliser& n, float x) {
  return n.multiply ? __fmul_rn(n.by, x) : divide(rules, x, n.by);
}

/// One head: from `in` of conv_out to `out`. q is scaled, k never.
__device__ void norm_head(const StepView& s, std::int64_t in, float* out, bool scaled, float* scratch) {
  const float scale = s.shape.scale;
  const bool before = scaled && s.rules.scale == Scale::before, after = scaled && !before;
  const bool norm = s.shape.qk_l2norm && s.rules.qk_norm != QkNorm::none;
  const auto x = [&](int i) {
    const float value = load(s.shape.act_type, s.out.conv_out, in + i);
    return before ? __fmul_rn(value, scale) : value;
  };
  const Normaliser by = norm ? normaliser(s, x, scratch) : Normaliser{};
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < s.shape.K; i += kWarp) {
    float value = x(i);
    if (norm) value = normalised(s.rules, by, value);
    if (after) value = __fmul_rn(scale, value);
    out[i] = norm || scaled ? canonical(value) : value;  // otherwise a copy, which keeps its payload
  }
}

__global__ void qk_norm_kernel(StepView s) {
  const std::int64_t H = s.shape.H, K = s.shape.K;
  float* scratch = warp_scratch(s.qk_order);
  for (std::int64_t task = first_warp(); task < s.shape.rows * H * 2; task += all_warps()) {
    const std::int64_t row = task / (2 * H), head = task % H;
    if (s.in.block[row] < 0) continue;
    const bool is_q = task % (2 * H) < H;
    const std::int64_t in = row * s.shape.dim + (is_q ? head : H + head) * K, out = (row * H + head) * K;
    norm_head(s, in, (is_q ? s.out.q : s.out.k) + out, is_q, scratch);
  }
}

// ---- gates: one thread a value head of a row (rule A2.4) ----

__device__ float param(const StepView& s, float x) {
  return s.rules.params == Params::bf16 ? rounded_to(DType::bf16, x) : x;
}

/// The factor of the state from its log.
__device__ float decay_of(const Rules& rules, float g) {
  if (rules.decay == Decay::none) return 1.0f;
  if (rules.decay == Decay::linear) return g;
  const float factor = exp_of(rules, g);
  return rules.decay == Decay::twice ? exp_of(rules, factor) : factor;
}

__global__ void gates_kernel(StepView s) {
  for (std::int64_t at = first_thread(); at < s.shape.rows * s.shape.HV; at += all_threads()) {
    const std::int64_t row = at / s.shape.HV, head = at % s.shape.HV;
    if (s.in.block[row] < 0) continue;

    const float sum = __fadd_rn(load(s.shape.act_type, s.in.a, at), param(s, s.params.dt_bias[head]));
    const float rate = negated(s.rules, exp_of(s.rules, param(s, s.params.A_log[head])));
    const float g = __fmul_rn(rate, softplus(s.rules, sum));
    const float beta = sigmoid(s.rules, load(s.shape.act_type, s.in.b, at));

    s.out.g[at] = canonical(g);
    s.out.decay[at] = canonical(decay_of(s.rules, g));
    s.out.beta[at] = canonical(s.rules.beta == Beta::bf16 ? rounded_to(DType::bf16, beta) : beta);
  }
}

// ---- recurrence: one warp a row of the state (rule A2.5) ----

__device__ std::int64_t key_head(const StepView& s, std::int64_t head) {
  return s.rules.head_map == HeadMap::grouped ? head / (s.shape.HV / s.shape.H) : head % s.shape.H;
}

/// Value element i of one head; `at` counts heads of all rows, `state_at` is where its K state elements lie.
__device__ void recurrent_row(const StepView& s, std::int64_t at, std::int64_t i, std::int64_t state_at,
                              float* scratch) {
  const std::int64_t HV = s.shape.HV, row = at / HV, head = at % HV;
  const std::int64_t keys = (row * s.shape.H + key_head(s, head)) * s.shape.K;
  const std::int64_t v_at = row * s.shape.dim + 2LL * s.shape.H * s.shape.K + head * s.shape.V + i;
  const float* q = s.out.q + keys;
  const float* k = s.out.k + keys;
  const float decay = s.out.decay[at], v = load(s.shape.act_type, s.out.conv_out, v_at);
  const auto query = [&](int j) { return q[j]; };
  const auto key = [&](int j) { return k[j]; };

  float* held = s.held.S == nullptr ? nullptr : s.held.S + (at * s.shape.V + i) * s.shape.K;
  const auto decayed = [&](int j) {
    return __fmul_rn(decay, s.held.read ? held[j] : load(s.shape.state_type, s.pool.recurrent, state_at + j));
  };
  const float dot_k = dot(k_order(s.state_order, i), decayed, key, scratch);
  const float u = __fmul_rn(__fsub_rn(v, dot_k), s.out.beta[at]);
  const auto updated = [&](int j) {
    return s.rules.update == Update::fma ? __fmaf_rn(k[j], u, decayed(j)) : __fadd_rn(decayed(j), __fmul_rn(u, k[j]));
  };
  const float out = dot(s.state_order, updated, query, scratch);

  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int j = lane; j < s.shape.K; j += kWarp) {
    const float S = updated(j);
    if (s.held.write) held[j] = S;
    store(s.shape.state_type, s.pool.recurrent, state_at + j,
          s.rules.state_store == StateStore::bf16 ? rounded_to(DType::bf16, S) : S);
  }
  if (lane != 0) return;
  s.out.dot_k[at * s.shape.V + i] = canonical(dot_k);
  s.out.u[at * s.shape.V + i] = canonical(u);
  store(s.shape.act_type, s.out.core_out, at * s.shape.V + i, out);
}

__global__ void recurrent_kernel(StepView s) {
  const std::int64_t HV = s.shape.HV, V = s.shape.V;
  float* scratch = warp_scratch(s.state_order);
  for (std::int64_t task = first_warp(); task < s.shape.rows * HV * V; task += all_warps()) {
    const std::int64_t at = task / V, i = task % V, row = at / HV, head = at % HV, block = s.in.block[row];
    if (block < 0) continue;
    recurrent_row(s, at, i, ((block * HV + head) * V + i) * s.shape.K, scratch);
  }
}

}  // namespace

void launch_conv(const StepView& step) { launch_threads(conv_kernel, step.shape.rows * step.shape.dim, step); }

void launch_qk_norm(const StepView& step) {
  launch_warps(qk_norm_kernel, step.shape.rows * step.shape.H * 2, step.qk_order, step);
}

void launch_gates(const StepView& step) { launch_threads(gates_kernel, step.shape.rows * step.shape.HV, step); }

void launch_recurrent(const StepView& step) {
  launch_warps(recurrent_kernel, step.shape.rows * step.shape.HV * step.shape.V, step.state_order, step);
}

bool has_kernel_image() {
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, recurrent_kernel);
  if (status == cudaSuccess) return true;
  cudaGetLastError();
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction ||
      status == cudaErrorUnsupportedPtxVersion || status == cudaErrorInvalidPtx)
    return false;
  GDNSIM_CUDA(status);
  return false;
}

}  // namespace gdnsim::cuda
