// The recurrence of some V rows of one head through its steps. A step or a few work on the rows as they lie. For more, the rows
// become tiles that are loaded once, stay at hand, and go back at the end.
#pragma once

#include "simd_digest.hpp"
#include "simd_rows.hpp"
#include "simd_tile.hpp"

namespace gdnsim::golden {
namespace {

constexpr int kTiles = 2;  // at hand at a time: the end of one's step and the other's passes overlap

std::int64_t recurrent_scratch(const Rules& rules) {
  const std::int64_t K = rules.model->K;
  const std::int64_t tiles = kTiles * K + dot_scratch(rules.state_order);
  const std::int64_t rows = K + kFewSteps * (8 * K / kWidth) + 4 * (rules.model->V / kWidth);
  return tiles > rows ? tiles : rows;
}

std::size_t row_bytes(const HeadJob& job) { return static_cast<std::size_t>(job.K) * word_size(job.state_dtype); }

/// Up to kWidth of the job's rows.
HeadJob tile_of(const HeadJob& job, int first) {
  HeadJob part = job;
  part.first = job.first + first;
  part.rows = job.rows - first < kWidth ? job.rows - first : kWidth;
  return part;
}
F value_of(const HeadJob& tile, const HeadStep& step) {
  const DType act = step.rules->model->act_dtype;
  return load_words(act, step.v + static_cast<std::size_t>(tile.first) * word_size(act), tile.rows);
}
std::byte* state_of(const HeadJob& tile, std::byte* head) {
  return head + static_cast<std::size_t>(tile.first) * row_bytes(tile);
}

/// What leaves one step: rounded, NaNs canonical.
void store_result(const HeadJob& tile, const HeadStep& step, const StepResult& result) {
  const DType act = step.rules->model->act_dtype;
  store_words(act, step.out + static_cast<std::size_t>(tile.first) * word_size(act), result.out, tile.rows);
  if (step.dot_k != nullptr) store(step.dot_k + tile.first, result.dot_k, tile.rows);
  if (step.u != nullptr) store(step.u + tile.first, result.u, tile.rows);
}

/// The digest of the job's rows is the sum of its tiles'.
void add_digest(const HeadJob& job, const HeadJob& tile, const HeadStep& step, const F* S) {
  const std::uint64_t digest = digest_tile(tile, S);
  *step.digest = tile.first == job.first ? digest : *step.digest + digest;
}

// ---- tiles ----

/// Up to kTiles tiles of a job through its steps.
struct TileRun {
  const HeadJob& job;
  F *S, *scratch;
  HeadJob tile[kTiles];
  int tiles = 0;
  F dot_k[kTiles];                 // of the step to come, when `begun`
  bool begun = false;              // the tiles have been through that step's first pass
  const Passes* passes = nullptr;  // of the step to come

  TileRun(const HeadJob& job_, int first)
      : job(job_), S(reinterpret_cast<F*>(job_.scratch)), scratch(S + kTiles * job_.K) {
    for (; tiles < kTiles && first < job.rows; first += kWidth) tile[tiles++] = tile_of(job, first);
    for (int i = 0; i < tiles; ++i)
      load_tile(job.state_dtype, state_of(tile[i], job.state), job.K, tile[i].rows, S + i * job.K);
    passes = passes_of(*job.step, job.K);
    for (const HeadStep* step = job.step; step != job.step + job.steps; ++step)
      run(*step, step + 1 == job.step + job.steps);
    for (int i = 0; i < tiles; ++i)
      store_tile(job.state_dtype, state_of(tile[i], job.state), job.K, tile[i].rows, S + i * job.K);
  }

  void run(const HeadStep& step, bool is_last) {
    const HeadStep* next = is_last ? nullptr : &step + 1;
    const Passes* coming = is_last ? nullptr : passes_of(*next, job.K);
    const bool looked_at = step.state != nullptr || step.digest != nullptr;
    const bool joined = passes != nullptr && passes->both != nullptr && coming == passes && !looked_at;
    for (int i = 0; i < tiles; ++i) store_result(tile[i], step, one_step(i, step, joined ? next : nullptr));
    if (looked_at) look(step);
    begun = joined, passes = coming;
  }

  /// One tile; also the first pass of `next` where there is one.
  StepResult one_step(int i, const HeadStep& step, const HeadStep* next) {
    F* s = S + i * job.K;
    const F v = value_of(tile[i], step);
    if (passes == nullptr) return any_step(step, job.K, tile[i].first, v, s, scratch);
    const F dot = begun ? dot_k[i] : passes->first(step, job.K, s), u = (v - dot) * all(step.beta);
    if (next == nullptr) return {dot, u, passes->second(step, job.K, u, s)};
    const Pair<F> sums = passes->both(step, *next, job.K, u, s);
    dot_k[i] = sums.b;
    return {dot, u, sums.a};
  }

  void look(const HeadStep& step) const {
    for (int i = 0; i < tiles; ++i) {
      if (step.state != nullptr)
        store_tile(job.state_dtype, state_of(tile[i], step.state), job.K, tile[i].rows, S + i * job.K);
      if (step.digest != nullptr) add_digest(job, tile[i], step, S + i * job.K);
    }
  }
};

// ---- rows ----

/// Rows [first, first + rows) of a job, whole tiles, through one step; `tile` [K] is scratch.
template <class Rows, bool kFmaUpdate>
void run_rows_of(const HeadJob& job, const HeadStep& step, const F* prepared, int first, int rows,
                 const RowValues& values, F* tile) {
  const std::size_t bytes = static_cast<std::size_t>(rows) * row_bytes(job);
  std::byte* const state = state_of(tile_of(job, first), job.state);
  for (int i = 0; i < rows; i += kWidth) store(values.v + i, value_of(tile_of(job, first + i), step));
  rows_step<Rows, kFmaUpdate>(step, prepared, values, reinterpret_cast<float*>(state), rows);
  for (int i = 0; i < rows; i += kWidth)
    store_result(tile_of(job, first + i), step, {load(values.dot_k + i), load(values.u + i), load(values.out + i)});
  if (step.state != nullptr) __builtin_memcpy(state_of(tile_of(job, first), step.state), state, bytes);
  if (step.digest == nullptr) return;
  for (int i = 0; i < rows; i += kWidth) {
    load_tile(job.state_dtype, state + static_cast<std::size_t>(i) * row_bytes(job), job.K, kWidth, tile);
    add_digest(job, tile_of(job, first + i), step, tile);
  }
}

/// All rows through one step; or a tile through all steps, then the next.
template <class Rows, bool kFmaUpdate>
void run_rows(const HeadJob& job) {
  F* const tile = reinterpret_cast<F*>(job.scratch);
  F* const prepared = tile + job.K;
  float* const v = reinterpret_cast<float*>(prepared + kFewSteps * Rows::kPrepared);
  const RowValues values{v, v + job.rows, v + 2 * job.rows, v + 3 * job.rows};
  for (int i = 0; i < job.steps; ++i) Rows::prepare(job.step[i], prepared + i * Rows::kPrepared);
  const int rows = job.steps == 1 ? job.rows : kWidth;
  for (int first = 0; first < job.rows; first += rows)
    for (int i = 0; i < job.steps; ++i)
      run_rows_of<Rows, kFmaUpdate>(job, job.step[i], prepared + i * Rows::kPrepared, first, rows, values, tile);
}

struct RowsKernel {
  void (*run)(const HeadJob& job);
  int most_steps;  // beyond which tiles are faster
};
template <class Rows, bool kFmaUpdate>
constexpr RowsKernel kRowsKernel{run_rows<Rows, kFmaUpdate>, Rows::kMostSteps};

/// Null where there is none for the contract.
const RowsKernel* rows_for(const Rules& rules) {
  if (rules.model->state_dtype != DType::f32 || rules.contract->state_store == StateStore::bf16) return nullptr;
  const bool fma_update = rules.contract->update == Update::fma;
  const DotOrder& order = rules.state_order;
  if (order.sequential_from < kTileRows) return nullptr;
  if (FixedOrder<1, false, 32>::is(order) && !fma_update) {
    if (order.n == 128) return &kRowsKernel<RowsOfOnes<128>, false>;
    if (order.n == 64) return &kRowsKernel<RowsOfOnes<64>, false>;
  }
  if (FixedOrder<4, false, 32>::is(order) && !fma_update) return &kRowsKernel<RowsOfFours<128, false>, false>;
#ifdef __FMA__
  if (FixedOrder<4, true, 32>::is(order) && fma_update) return &kRowsKernel<RowsOfFours<128, true>, true>;
  if (FixedOrder<4, true, 16>::is(order) && fma_update) return &kRowsKernel<RowsOfFours<64, true>, true>;
#endif
  return nullptr;
}

/// For all steps of a job.
const RowsKernel* rows_for(const HeadJob& job) {
  const RowsKernel* kernel = job.rows % kWidth == 0 ? rows_for(*job.step->rules) : nullptr;
  if (kernel == nullptr || job.steps > kernel->most_steps) return nullptr;
  for (int i = 1; i < job.steps; ++i)
    if (job.step[i].rules != job.step->rules && rows_for(*job.step[i].rules) != kernel) return nullptr;
  return kernel;
}

void run_head(const HeadJob& job) {
  if (const RowsKernel* kernel = rows_for(job)) return kernel->run(job);
  for (int first = 0; first < job.rows; first += kTiles * kWidth) TileRun(job, first);
}

}  // namespace
}  // namespace gdnsim::golden
