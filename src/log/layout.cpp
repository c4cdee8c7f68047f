#include "log/layout.hpp"

#include <algorithm>
#include <charconv>

#include "file/schema.hpp"
#include "gdnsim/error.hpp"
#include "log/checkpoint.hpp"
#include "log/events.hpp"

namespace gdnsim {
namespace {

constexpr std::int64_t kMaxSteps = std::int64_t{1} << 31;

std::uint64_t size(std::int64_t count) { return static_cast<std::uint64_t>(count); }

/// [B] and what follows of one tap's dataset.
h5::Dims tap_dims(Tap tap, const Model& model, const h5::Dims& front) {
  const TapShape shape = shape_of(tap, model);
  h5::Dims dims = front;
  const bool channels = tap == Tap::conv_acc || tap == Tap::conv_out;
  const bool scalars = tap == Tap::beta || tap == Tap::g || tap == Tap::decay || tap == Tap::rstd;
  if (!channels) dims.push_back(size(shape.heads));
  if (!scalars) dims.push_back(size(shape.per_head));
  return dims;
}

void require(bool holds, const std::string& where, const char* what) {
  if (!holds) throw error(where, ": ", what);
}

void require_whole(const LogHeader& header, const std::string& where) {
  validate(header.model, where);
  require(header.steps >= 1, where, "steps: expected at least 1");
  require(header.first_step >= 0 && header.steps <= kMaxSteps && header.first_step <= kMaxSteps - header.steps, where,
          "steps: expected numbers below 2^31");
  require(header.rows >= 1, where, "rows: expected at least 1");
  require(!header.layers.empty(), where, "/model/layers: expected at least one");
  for (std::size_t i = 0; i < header.layers.size(); ++i) {
    require(header.layers[i] >= 0 && header.layers[i] < header.model.layers(), where,
            "/model/layers: expected positions in layer_ids");
    require(i == 0 || header.layers[i] > header.layers[i - 1], where, "/model/layers: expected ascending positions");
  }
  require(!header.taps.empty(), where, "taps: expected at least one");
  require(header.state.n >= 1, where, "state policy: expected every:N with N of 1 or more");
  require(size(header.steps) == header.plans.size(), where, "plans: expected one a step");
  for (std::size_t t = 0; t < header.plans.size(); ++t) {
    const StepPlan& plan = header.plans[t];
    require(plan.rows() == header.rows, where, "plans: expected as many rows as the log has");
    require(plan.step == header.first_step + static_cast<std::int64_t>(t), where,
            "plans: expected the logged steps in order");
  }
  require(header.checkpoint_every >= 0, where, "checkpoints: expected every:M with M of 1 or more");
  if (has_checkpoints(header)) require_checkpoint_blocks(header, where);
}

/// Recurrent and conv states of whole blocks, behind the axes `front`.
std::vector<Extent> block_extents(std::string_view group, const Model& m, const h5::Dims& front) {
  h5::Dims recurrent = front, conv = front;
  recurrent.insert(recurrent.end(), {size(m.HV), size(m.V), size(m.K)});
  conv.insert(conv.end(), {size(m.W - 1), size(m.dim())});
  return {{group, schema::kRecurrent, h5::type_of(m.state_dtype), recurrent},
          {group, schema::kConv, h5::type_of(m.conv_state_dtype), conv}};
}

void lay_out_checkpoints(const LogHeader& header, LogLayout& layout) {
  layout.checkpoints = checkpoint_steps(header);
  if (layout.checkpoints.empty()) return;
  layout.checkpoint = block_extents(schema::kCheckpoint, header.model,
                                    {layout.checkpoints.size(), header.layers.size(), header.checkpoint_blocks.size()});
}

void lay_out_state(const LogHeader& header, LogLayout& layout) {
  layout.kept = header.state.kept_steps(header.steps);
  if (layout.kept.empty()) return;
  layout.state =
      block_extents(schema::kState, header.model, {layout.kept.size(), header.layers.size(), size(header.rows)});
  for (std::int64_t kept : layout.kept)
    for (std::size_t row = 0; row < size(header.rows); ++row)
      layout.kept_blocks.push_back(logged_block(header.plans[size(kept)], row));
}

void lay_out_events(const LogHeader& header, LogLayout& layout, const std::string& where) {
  std::size_t at = 0;
  for (std::int64_t step = header.first_step; step <= header.first_step + header.steps; ++step) {
    layout.first_event.push_back(at);
    while (at < header.events.size() && header.events[at].step == step) ++at;
  }
  require(layout.first_event.back() == header.events.size(), where, "/events/step: expected logged steps, ascending");
  if (header.events.empty()) return;
  const h5::Dims EL{header.events.size(), header.layers.size()};
  layout.events = {Extent{schema::kEvents, schema::kBefore, h5::Type::u64, EL},
                   Extent{schema::kEvents, schema::kAfter, h5::Type::u64, EL}};
}

template <class Layout, class Pointer>
void collect(Layout& layout, std::vector<Pointer>& all) {
  for (auto& extent : layout.out) all.push_back(&extent);
  for (auto& extent : layout.state) all.push_back(&extent);
  for (auto& extent : layout.checkpoint) all.push_back(&extent);
  for (auto& extent : layout.events) all.push_back(&extent);
  for (auto& extent : layout.digest) all.push_back(&extent);
  all.push_back(&layout.commit);
}

}  // namespace

std::string Extent::path() const {
  return group.empty() ? "/" + std::string(name) : "/" + std::string(group) + "/" + std::string(name);
}

std::uint64_t Extent::bytes() const {
  const auto bytes = h5::bytes_of(type, dims);
  if (!bytes) throw error(path(), ": ", h5::text_of(dims), " is more than a file can hold");
  return *bytes;
}

std::size_t Extent::entry_bytes(std::size_t axes) const {
  std::size_t bytes = h5::size_of(type);
  for (std::size_t axis = axes; axis < dims.size(); ++axis) bytes *= dims[axis];
  return bytes;
}

std::uint64_t Extent::at(std::initializer_list<std::uint64_t> index) const {
  std::uint64_t entry = 0;
  std::size_t axis = 0;
  for (std::uint64_t i : index) {
    GDNSIM_CHECK(axis < dims.size() && i < dims[axis]);
    entry = entry * dims[axis++] + i;
  }
  return offset + entry * entry_bytes(axis);
}

std::vector<Extent*> LogLayout::extents() {
  std::vector<Extent*> all;
  collect(*this, all);
  return all;
}

std::vector<const Extent*> LogLayout::extents() const {
  std::vector<const Extent*> all;
  collect(*this, all);
  return all;
}

bool is_output_tap(Tap tap) { return tap != Tap::conv_state && tap != Tap::state; }

StepColumns columns_of(const std::vector<StepPlan>& plans) {
  StepColumns columns;
  for (const StepPlan& plan : plans) {
    columns.index.insert(columns.index.end(), plan.index.begin(), plan.index.end());
    columns.sequence.insert(columns.sequence.end(), plan.sequence.begin(), plan.sequence.end());
    columns.rows.push_back(plan.present);
    columns.path.push_back(static_cast<std::int8_t>(plan.path));
  }
  return columns;
}

LogLayout lay_out(const LogHeader& header, const std::string& where) {
  require_whole(header, where);
  const std::uint64_t T = size(header.steps), L = header.layers.size(), B = size(header.rows);
  LogLayout layout;
  for (std::size_t i = 0; i < kTaps; ++i) {
    const Tap tap = static_cast<Tap>(i);
    if (!header.taps.has(tap)) continue;
    require(is_output_tap(tap), where, "taps: state and conv_state are kept by the state policy, not as taps");
    layout.taps.push_back(tap);
    layout.out.push_back({schema::kOut, name_of(tap), h5::type_of(shape_of(tap, header.model).type),
                          tap_dims(tap, header.model, {T, L, B})});
  }
  lay_out_state(header, layout);
  lay_out_checkpoints(header, layout);
  lay_out_events(header, layout, where);
  layout.digest = {Extent{schema::kDigest, schema::kRecurrent, h5::Type::u64, {T, L, B, size(header.model.HV)}},
                   Extent{schema::kDigest, schema::kConv, h5::Type::u64, {T, L, B}},
                   Extent{schema::kDigest, schema::kPool, h5::Type::u64, {T, L}},
                   Extent{schema::kDigest, schema::kOut, h5::Type::u64, {T, L, layout.taps.size()}}};
  layout.commit = {"", schema::kCommit, h5::Type::u64, {T, 4}};
  for (const Extent* extent : layout.extents())
    static_cast<void>(extent->bytes());  // throws when a product is beyond files
  return layout;
}

// ---- the state policy

bool StatePolicy::keeps(std::int64_t step, std::int64_t steps) const {
  switch (kind) {
    case Kind::full:
      return true;
    case Kind::every:
      return (step + 1) % n == 0 || step + 1 == steps;
    case Kind::digest:
      return false;
  }
  return false;
}

std::vector<std::int64_t> StatePolicy::kept_steps(std::int64_t steps) const {
  std::vector<std::int64_t> kept;
  for (std::int64_t step = 0; step < steps; ++step)
    if (keeps(step, steps)) kept.push_back(step);
  return kept;
}

StatePolicy state_policy_from(const std::string& text) {
  if (text == "full") return {StatePolicy::Kind::full, 1};
  if (text == "digest") return {StatePolicy::Kind::digest, 1};
  StatePolicy every{StatePolicy::Kind::every, 0};
  const char* end = text.data() + text.size();
  if (text.starts_with("every:")) {
    const auto [stop, bad] = std::from_chars(text.data() + 6, end, every.n);
    if (bad == std::errc() && stop == end && every.n >= 1) return every;
  }
  throw error("state policy: expected full, every:N (N of 1 or more) or digest, found '", text, "'");
}

int version_of(const LogHeader& header) {
  const auto says_more = [](const StepPlan& plan) {
    return plan.in_launch() || !plan.source.empty() || !plan.accepted.empty();
  };
  const Model& m = header.model;
  const bool strides = m.block_stride != 0 || m.conv_block_stride != 0 || m.index_bits != 64;
  return strides || !header.events.empty() || std::ranges::any_of(header.plans, says_more) ? 2 : 1;
}

std::vector<Event> events_of(const Stream& stream, std::int64_t first_step, std::int64_t last_step) {
  std::vector<Event> events;
  for (const Event& event : stream.events())
    if (event.step >= first_step && event.step < last_step) events.push_back(event);
  return events;
}

std::uint64_t log_size(const LogHeader& header) {
  constexpr std::uint64_t page = 4096, groups = 10;  // each object's header takes a page, and so begins each dataset
  const LogLayout layout = lay_out(header, "log");
  const std::uint64_t T = size(header.steps), rows = T * size(header.rows);
  std::vector<std::uint64_t> datasets{
      4 * size(header.model.layers()), 4 * header.layers.size(),     header.source.size(), 4 * rows, 8 * rows, 4 * T, T,
      4 * layout.kept.size(),          4 * layout.kept_blocks.size()};
  if (has_checkpoints(header))
    datasets.insert(datasets.end(), {4 * layout.checkpoints.size(), 4 * header.checkpoint_blocks.size()});
  const LaunchWords launches = launch_words(header.plans);
  if (launches.has_draft) datasets.push_back(T);
  if (launches.has_source) datasets.push_back(4 * rows);
  if (launches.has_accepted) datasets.push_back(4 * rows);
  const std::uint64_t E = header.events.size();
  if (E > 0) datasets.insert(datasets.end(), {4 * E, 4 * E, 4 * E, E, 4 * E, 8 * E, E});
  for (const Extent* extent : layout.extents()) datasets.push_back(extent->bytes());
  std::uint64_t bytes = (groups + has_checkpoints(header) + (E > 0)) * page;
  for (std::uint64_t data : datasets)
    if (data > 0) bytes += page + (data + page - 1) / page * page;
  return bytes;
}

}  // namespace gdnsim
