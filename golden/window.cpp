#include "window.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "gdnsim/error.hpp"

namespace gdnsim::golden {
namespace {

constexpr std::int64_t kConvChunk = 1024;  // channels that a thread takes at a time

// Correctly rounded, for the lanes that the vector functions leave open.
constexpr Slow kSlow{exp_cr, log_cr, log1p_cr};

std::int64_t ceil_of(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::vector<std::uint64_t> digest_keys(const Model& model) {
  std::vector<std::uint64_t> keys(
      static_cast<std::size_t>(ceil_of(model.K * static_cast<int>(size_of(model.state_dtype)), 8)));
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = mix(i + 1);
  return keys;
}

}  // namespace

Window::Window(const Model& model, const Kernels& kernels, Crew& crew)
    : model_(model),
      kernels_(kernels),
      conv_chunks_(ceil_of(model.dim(), kConvChunk)),
      qk_parts_(2 * ceil_of(model.H, kernels.width) + 1),
      keys_(digest_keys(model)),
      scratch_(static_cast<std::size_t>(crew.threads())),
      crew_(crew) {}

void Window::run(int layer, const Weights& weights, bool norm, HostPool& pool, std::span<const WindowItem> items) {
  begin(layer, weights, norm, pool, items);
  const std::int64_t chains = static_cast<std::int64_t>(chains_.size()), heads = chains * model_.HV * slabs_;
  stage(chains * conv_chunks_, [this](std::int64_t i, int) { conv_task(i); });
  stage(static_cast<std::int64_t>(active_.size()) * qk_parts_,
        [this](std::int64_t i, int thread) { qk_task(i, thread); });
  stage(heads, [this](std::int64_t i, int thread) { head_task(i, thread); });
  stage(static_cast<std::int64_t>(norms_.size()), [this](std::int64_t i, int thread) { norm_task(i, thread); });
  stage(static_cast<std::int64_t>(captures_.size()), [this](std::int64_t i, int) { capture_task(i); });
}

template <class Task>
void Window::stage(std::int64_t count, const Task& task) {
  if (worth_threads_) return crew_.share(count, task);
  for (std::int64_t i = 0; i < count; ++i) task(i, 0);
}

/// A head's rows stay together unless there are too few heads for the threads.
void Window::plan_tasks() {
  const std::int64_t elements =
      static_cast<std::int64_t>(active_.size()) * (model_.state_elements() + 8 * model_.dim());
  worth_threads_ = elements >= kWorthThreads;
  rows_ = model_.V;
  const std::int64_t heads = static_cast<std::int64_t>(chains_.size()) * model_.HV,
                     wanted = worth_threads_ ? 8 * crew_.threads() : 1;
  const int fewest = 2 * kernels_.width;
  while (rows_ > fewest && heads * ceil_of(model_.V, rows_) < wanted)
    rows_ = static_cast<int>(ceil_of(ceil_of(rows_, 2), fewest)) * fewest;
  slabs_ = static_cast<int>(ceil_of(model_.V, rows_));
}

// ---- what is where ----

void Window::begin(int layer, const Weights& weights, bool norm, HostPool& pool, std::span<const WindowItem> items) {
  layer_ = layer, weights_ = &weights, norm_ = norm, pool_ = &pool;
  rules_.clear(), places_.clear(), chains_.clear(), chain_of_.clear(), captures_.clear(), active_.clear(),
      norms_.clear();
  if (spare_.size() < items.size()) spare_.resize(items.size());
  for (std::size_t step = 0; step < items.size(); ++step) {
    place(items[step], step);
    follow_blocks(step);
  }
  plan_tasks();
  plan_captures();
  plan_chains();
  std::int64_t floats = 0;
  for (const Rules& rules : rules_) floats = std::max(floats, kernels_.scratch(rules));
  for (Scratch& scratch : scratch_)
    if (scratch.storage.size() < static_cast<std::size_t>(floats) * 4 + 64)
      scratch.storage.resize(static_cast<std::size_t>(floats) * 4 + 64);
}

/// Steps with the same contract and rows share their rules.
const Rules& Window::rules_of(const WindowItem& item) {
  const DotContext launch{model_.state_dtype, item.plan.norm_rows(model_.HV), item.contract.multiprocessors};
  const DotOrder norm_order = resolve(item.contract.norm_dot, model_.V, launch);
  for (const Rules& rules : rules_)
    if (rules.contract == &item.contract && rules.norm_order == norm_order) return rules;
  rules_.push_back({&model_, &item.contract, &kSlow, resolve(item.contract.qk_dot, model_.K, launch),
                    resolve(item.contract.state_dot, model_.K, launch), norm_order, model_.norm_eps.value_or(0.0f)});
  return rules_.back();
}

/// Storage of one tap for a step: the caller's where it is wanted, ours where only `needed`. Inactive rows become +0.
std::byte* Window::place_tap(Place& place, std::size_t step, Tap tap, bool needed) {
  StepOutputs& outputs = place.item->outputs;
  const bool wanted = outputs.want.has(tap);
  if (!wanted && !needed) return nullptr;
  Bytes& bytes = wanted ? outputs[tap] : spare_[step][static_cast<std::size_t>(tap)];
  const std::size_t row_bytes = shape_of(tap, model_).bytes();
  const StepPlan& plan = place.item->plan;
  bytes.resize(static_cast<std::size_t>(plan.rows()) * row_bytes);
  for (std::size_t row = 0; row < plan.block.size(); ++row)
    if (plan.block[row] < 0) std::memset(bytes.data() + row * row_bytes, 0, row_bytes);
  return bytes.data();
}

void Window::place(const WindowItem& item, std::size_t step) {
  Place p{};
  p.item = &item;
  p.rules = &rules_of(item);
  const auto floats = [&](Tap tap, bool needed) { return reinterpret_cast<float*>(place_tap(p, step, tap, needed)); };
  p.conv_acc = floats(Tap::conv_acc, false);
  p.conv_out = place_tap(p, step, Tap::conv_out, true);
  p.q = floats(Tap::q, true), p.k = floats(Tap::k, true);
  p.beta = floats(Tap::beta, true), p.g = floats(Tap::g, false), p.decay = floats(Tap::decay, true);
  p.dot_k = floats(Tap::dot_k, false), p.u = floats(Tap::u, false);
  p.core_out = place_tap(p, step, Tap::core_out, true);
  if (norm_) {
    p.rstd = floats(Tap::rstd, false), p.norm_out = place_tap(p, step, Tap::norm_out, false);
  } else {
    for (Tap tap : {Tap::rstd, Tap::norm_out})
      if (item.outputs.want.has(tap)) item.outputs[tap].clear();
  }
  places_.push_back(p);
}

/// Which blocks this step touches, and who looks at which block after it.
void Window::follow_blocks(std::size_t step) {
  const WindowItem& item = *places_[step].item;
  for (int row = 0; row < item.plan.rows(); ++row) {
    const std::int32_t block = item.plan.block[static_cast<std::size_t>(row)];
    if (block < 0) continue;
    const auto [found, is_new] = chain_of_.try_emplace(block, chains_.size());
    if (is_new) chains_.push_back({block, {}, {}});
    chains_[found->second].touches.push_back({static_cast<int>(step), row, -1});
    active_.push_back({static_cast<int>(step), row});
  }
  if (places_[step].rstd != nullptr || places_[step].norm_out != nullptr)
    for (int at = 0; at < item.plan.rows() * model_.HV; at += kernels_.width)
      norms_.push_back({static_cast<int>(step), at});
  if (item.kept == nullptr) return;
  item.kept->resize(item.looks.size());
  for (std::size_t i = 0; i < item.looks.size(); ++i) attach_look(step, item.looks[i], (*item.kept)[i]);
}

/// A look sees the block as its last touch left it; one that no step has touched yet is seen as it is now.
void Window::attach_look(std::size_t, const Look& look, KeptBlock& kept) {
  kept.block = look.block;
  kept.make_room(look.bytes, model_);
  const auto chain = chain_of_.find(look.block);
  if (chain == chain_of_.end()) {
    kept.digest = pool_->digest(layer_, look.block);
    if (!look.bytes) return;
    return pool_->read(layer_, look.block, kept.recurrent, kept.conv);
  }
  Touch& touch = chains_[chain->second].touches.back();
  if (touch.capture < 0) {
    touch.capture = static_cast<int>(captures_.size());
    captures_.emplace_back();
  }
  Capture& capture = captures_[static_cast<std::size_t>(touch.capture)];
  if (look.bytes && !capture.bytes) {  // its first target holds the bytes
    capture.bytes = true;
    capture.targets.insert(capture.targets.begin(), &kept);
  } else {
    capture.targets.push_back(&kept);
  }
}

void Window::plan_captures() {
  if (windows_.size() < captures_.size()) windows_.resize(captures_.size());
  for (std::size_t i = 0; i < captures_.size(); ++i) {
    Capture& capture = captures_[i];
    capture.digests.resize(static_cast<std::size_t>(model_.HV) * static_cast<std::size_t>(slabs_));
    if (!capture.bytes) windows_[i].resize(model_.conv_bytes());
    capture.state = capture.bytes ? capture.targets[0]->recurrent.data() : nullptr;
    capture.conv = capture.bytes ? capture.targets[0]->conv.data() : windows_[i].data();
  }
}

void Window::plan_chains() {
  const std::size_t dim = static_cast<std::size_t>(model_.dim()), word = size_of(model_.act_dtype);
  for (Chain& chain : chains_)
    for (const Touch& touch : chain.touches) {
      const Place& p = places_[static_cast<std::size_t>(touch.step)];
      const std::size_t at = static_cast<std::size_t>(touch.row) * dim;
      chain.conv.push_back({p.rules, p.item->inputs.mixed_qkv.data() + at * word,
                            p.conv_acc == nullptr ? nullptr : p.conv_acc + at, p.conv_out + at * word,
                            touch.capture < 0 ? nullptr : captures_[static_cast<std::size_t>(touch.capture)].conv});
    }
}

// ---- the stages ----

void Window::conv_task(std::int64_t task) {
  const Chain& chain = chains_[static_cast<std::size_t>(task / conv_chunks_)];
  const std::int64_t begin = task % conv_chunks_ * kConvChunk, dim = model_.dim();
  kernels_.conv({dim, begin, std::min(begin + kConvChunk, dim), weights_->conv.data(),
                 weights_->conv_bias.size() > 0 ? weights_->conv_bias.data() : nullptr,
                 pool_->conv(layer_, chain.block).data(), chain.conv.data(), static_cast<int>(chain.conv.size())});
}

/// One row's gates, or q or k of `width` of its heads.
void Window::qk_task(std::int64_t task, int thread) {
  const Active& active = active_[static_cast<std::size_t>(task / qk_parts_)];
  const Place& p = places_[static_cast<std::size_t>(active.step)];
  const std::size_t row = static_cast<std::size_t>(active.row), word = size_of(model_.act_dtype);
  const std::int64_t part = task % qk_parts_;
  if (part == qk_parts_ - 1) {
    const std::size_t at = row * static_cast<std::size_t>(model_.HV);
    return kernels_.gates({p.rules, model_.HV, p.item->inputs.a.data() + at * word, p.item->inputs.b.data() + at * word,
                           weights_->A_log.data(), weights_->dt_bias.data(), p.beta + at,
                           p.g == nullptr ? nullptr : p.g + at, p.decay + at});
  }
  const bool is_q = part % 2 == 0;
  const int first = static_cast<int>(part / 2) * kernels_.width, heads = std::min(kernels_.width, model_.H - first);
  const std::size_t K = static_cast<std::size_t>(model_.K), head = static_cast<std::size_t>(first);
  const std::size_t from =
      row * static_cast<std::size_t>(model_.dim()) + (head + (is_q ? 0 : static_cast<std::size_t>(model_.H))) * K;
  const std::size_t to = (row * static_cast<std::size_t>(model_.H) + head) * K;
  kernels_.qk({p.rules, is_q, heads, p.conv_out + from * word, (is_q ? p.q : p.k) + to,
               scratch_[static_cast<std::size_t>(thread)].floats()});
}

HeadStep Window::head_step(const Touch& touch, const Chain&, int head, int slab) {
  const Place& p = places_[static_cast<std::size_t>(touch.step)];
  const std::size_t V = static_cast<std::size_t>(model_.V), K = static_cast<std::size_t>(model_.K);
  const std::size_t H = static_cast<std::size_t>(model_.H), hv = static_cast<std::size_t>(head),
                    word = size_of(model_.act_dtype);
  const std::size_t row = static_cast<std::size_t>(touch.row), at = row * static_cast<std::size_t>(model_.HV) + hv;
  const bool grouped = p.item->contract.head_map == HeadMap::grouped;
  const std::size_t key = (row * H + (grouped ? hv / (static_cast<std::size_t>(model_.HV) / H) : hv % H)) * K;
  HeadStep step{p.rules,
                p.q + key,
                p.k + key,
                p.decay[at],
                p.beta[at],
                p.conv_out + (row * static_cast<std::size_t>(model_.dim()) + 2 * H * K + hv * V) * word,
                p.core_out + at * V * word,
                p.dot_k == nullptr ? nullptr : p.dot_k + at * V,
                p.u == nullptr ? nullptr : p.u + at * V,
                nullptr,
                nullptr};
  if (touch.capture < 0) return step;
  Capture& capture = captures_[static_cast<std::size_t>(touch.capture)];
  if (capture.bytes) step.state = capture.state + hv * V * K * size_of(model_.state_dtype);
  step.digest = &capture.digests[hv * static_cast<std::size_t>(slabs_) + static_cast<std::size_t>(slab)];
  return step;
}

void Window::head_task(std::int64_t task, int thread) {
  const int slab = static_cast<int>(task % slabs_), head = static_cast<int>(task / slabs_ % model_.HV);
  const Chain& chain = chains_[static_cast<std::size_t>(task / slabs_ / model_.HV)];
  Scratch& scratch = scratch_[static_cast<std::size_t>(thread)];
  scratch.head.clear();
  for (const Touch& touch : chain.touches) scratch.head.push_back(head_step(touch, chain, head, slab));
  const std::size_t head_bytes =
      static_cast<std::size_t>(model_.V) * static_cast<std::size_t>(model_.K) * size_of(model_.state_dtype);
  kernels_.head({model_.state_dtype, model_.K, slab * rows_, std::min(rows_, model_.V - slab * rows_),
                 pool_->recurrent(layer_, chain.block).data() + static_cast<std::size_t>(head) * head_bytes,
                 keys_.data(), scratch.head.data(), static_cast<int>(scratch.head.size()), scratch.floats()});
}

void Window::norm_task(std::int64_t task, int thread) {
  const Active& group = norms_[static_cast<std::size_t>(task)];
  const Place& p = places_[static_cast<std::size_t>(group.step)];
  const std::size_t at = static_cast<std::size_t>(group.row), V = static_cast<std::size_t>(model_.V),
                    word = size_of(model_.act_dtype);
  kernels_.norm({p.rules, std::min(kernels_.width, p.item->plan.rows() * model_.HV - group.row),
                 p.core_out + at * V * word, p.item->inputs.z.data() + at * V * word, weights_->norm.data(),
                 p.rstd == nullptr ? nullptr : p.rstd + at,
                 p.norm_out == nullptr ? nullptr : p.norm_out + at * V * word,
                 scratch_[static_cast<std::size_t>(thread)].floats()});
}

/// Joins the digests of a capture, and gives all who look the same.
void Window::capture_task(std::int64_t task) {
  const Capture& capture = captures_[static_cast<std::size_t>(task)];
  BlockDigest digest;
  digest.heads.resize(static_cast<std::size_t>(model_.HV));
  for (std::size_t i = 0; i < capture.digests.size(); ++i)
    digest.heads[i / static_cast<std::size_t>(slabs_)] += capture.digests[i];
  digest.conv = digest_lines({capture.conv, model_.conv_bytes()},
                             static_cast<std::size_t>(model_.dim()) * size_of(model_.conv_state_dtype));
  digest.block = join_block(digest.heads, digest.conv);
  for (KeptBlock* target : capture.targets) {
    target->digest = digest;
    if (target->recurrent.empty() || target == capture.targets[0]) continue;
    std::memcpy(target->recurrent.data(), capture.state, model_.state_bytes());
    std::memcpy(target->conv.data(), capture.conv, model_.conv_bytes());
  }
}

}  // namespace gdnsim::golden
