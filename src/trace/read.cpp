// Reading a trace: opening checks everything that is not bulk data, then each call reads one step, one row or one snapshot.
#include <algorithm>
#include <array>
#include <limits>

#include "file/model_io.hpp"
#include "file/schema.hpp"
#include "file/trial.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/lifecycle.hpp"
#include "gdnsim/trace.hpp"
#include "trace/digest.hpp"
#include "trace/encoding.hpp"
#include "trace/layout.hpp"

namespace gdnsim {

using namespace schema;

namespace {

using h5::Dataset;
using h5::Dims;
using h5::Group;
using h5::kAny;
using OptionalData = std::optional<Dataset>;

void read_entry(Dataset& data, std::uint64_t row, Bytes& out) {
  data.require_whole();
  out.resize(data.row_bytes());
  data.read_rows(row, 1, out);
}

Bytes read_bytes(Dataset data) {
  data.require_whole();
  Bytes bytes(static_cast<std::size_t>(data.bytes()));
  data.read_all(bytes);
  return bytes;
}

/// Entry `row` of the first axis, unpacked; `packed` is storage to read into.
void read_unpacked(Dataset& data, std::uint64_t row, const Unpacking& unpacking, Bytes& packed, Bytes& out) {
  if (unpacking.none()) return read_entry(data, row, out);
  read_entry(data, row, packed);
  unpacking.apply(packed, h5::size_of(data.type()), out);
}

/// One layer's bulk data. Two projections that lie in one dataset stand in the first of them.
struct Layer {
  Dataset mixed_qkv, a;
  OptionalData b, z;
  std::array<OptionalData, kTaps> taps;
};

class TraceFile final : public Trace {
 public:
  explicit TraceFile(const std::string& path);

  std::string path() const override { return file_.path(); }
  const Model& model() const override { return model_; }
  std::int64_t steps() const override { return steps_; }
  int rows() const override { return rows_; }
  int version() const override { return static_cast<int>(version_); }
  const LayerParams& params(int layer) const override { return params_.at(static_cast<std::size_t>(layer)); }
  StepPlan plan(std::int64_t step) const override;
  std::span<const Event> events() const override { return events_; }
  bool has_z(int layer) const override {
    return encoding_.joined_qkvz || layers_.at(static_cast<std::size_t>(layer)).z.has_value();
  }
  void inputs(std::int64_t step, int layer, StepInputs& out) override;
  void load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) override;
  std::string source() override { return "trace:" + content_digest(); }

  const std::vector<std::pair<std::string, std::string>>& provenance() const override { return provenance_; }
  bool has_recording() const override;
  const std::vector<std::pair<std::string, std::string>>& layout() const override { return layout_; }
  std::string content_digest() override;
  std::vector<std::string> unknown() const override { return unknown_; }

  TapSet taps(int layer) const override;
  void read_tap(Tap tap, std::int64_t step, int layer, Bytes& out) override;
  void read_tap_rows(Tap tap, std::int64_t step, int layer, std::span<const int> rows, Bytes& out) override;
  std::span<const Snapshot> snapshots() const override { return snapshots_; }
  void read_snapshot(const Snapshot& snapshot, Bytes& recurrent, Bytes& conv) override;

  void try_chunks();

 private:
  void open_params(const Group& root);
  void open_plans(const Group& steps);
  void open_launches(const Group& steps);
  void require_tables(const Group& steps);
  void open_layer(const Group& steps, int layer);
  void open_events(const Group& root);
  void open_reasons(const Group& group);
  void open_recorded(const Group& root);
  void open_taps(const Group& group, Layer& layer);
  void open_snapshots(const Group& group);
  std::vector<std::int32_t> open_offsets(const Group& group, std::uint64_t count) const;
  void read_window(Dataset& data, std::uint64_t row, const std::vector<std::int32_t>& offsets, Bytes& conv);
  std::uint64_t entry(std::int64_t step) const;

  h5::File file_;  // first: closed after every dataset below
  std::int64_t version_ = 1;
  Model model_;
  TraceEncoding encoding_;
  std::int64_t steps_ = 0;
  int rows_ = 0;
  std::vector<LayerParams> params_;
  std::vector<std::int32_t> index_;          // [T, B]
  std::vector<std::int64_t> sequence_;       // [T, B]
  std::vector<std::int32_t> present_;        // [T]
  std::vector<std::int32_t> launch_tokens_;  // [T], or empty
  std::vector<std::int8_t> path_;            // [T]
  std::vector<std::int8_t> draft_;           // [T], and [T, B] each of:
  std::vector<std::int32_t> source_, accepted_;
  std::vector<Layer> layers_;
  std::vector<Event> events_;
  OptionalData load_recurrent_, load_conv_, state_recurrent_, state_conv_;
  std::vector<std::int32_t> load_offsets_, state_offsets_;
  std::vector<Snapshot> snapshots_;
  std::vector<std::pair<std::string, std::string>> provenance_, layout_;
  std::vector<std::string> unknown_;
  std::string digest_;
  Bytes packed_;
};

void require_complete(const Group& root) {
  const std::int64_t complete = root.int_attribute(kComplete);
  if (complete != 1)
    throw error(root.where(), " @", kComplete, ": expected 1, found ", complete, ": the trace was not closed properly");
}

TraceFile::TraceFile(const std::string& path) : file_(h5::File::open(path)) {
  const Group root = file_.root();
  version_ = require_format(root, kTraceFormat, kTraceVersion);
  require_complete(root);
  model_ = read_model(root, version_);
  encoding_ = read_encoding(root, model_, version_);
  if (version_ >= 2) layout_ = layout_words(root);
  open_params(root);
  const Group steps = root.group(kSteps);
  open_plans(steps);
  for (int layer = 0; layer < model_.layers(); ++layer) open_layer(steps, layer);
  open_events(root);
  open_recorded(root);
  provenance_ = read_provenance(root);
  unknown_ = file_.unasked();  // what was asked for until here is all that the format knows
  if (version_ >= 2) require_life(*this, file_.path());
}

void TraceFile::open_params(const Group& root) {
  const Group all = root.group(kParams);
  const auto HV = static_cast<std::uint64_t>(model_.HV), V = static_cast<std::uint64_t>(model_.V);
  const auto dim = static_cast<std::uint64_t>(model_.dim()), W = static_cast<std::uint64_t>(model_.W);
  const h5::Type act = h5::type_of(model_.act_dtype);
  for (int layer = 0; layer < model_.layers(); ++layer) {
    const Group group = all.group(std::to_string(layer));
    const auto optional = [&](std::string_view name, const Dims& dims) {
      OptionalData data = group.find_dataset(name, act, dims);
      return data ? read_bytes(std::move(*data)) : Bytes{};
    };
    LayerParams params;
    params.A_log = group.read_vector<float>(kALog, {HV});
    params.dt_bias = group.read_vector<float>(kDtBias, {HV});
    params.conv_weight = read_bytes(group.dataset(kConvWeight, act, {dim, W}));
    params.conv_bias = optional(kConvBias, {dim});
    params.norm_weight = optional(kNormWeight, {V});
    refuse_nan(params, model_, group.where());
    params_.push_back(std::move(params));
  }
}

/// Sizes T and B come from /steps/index; everything else has to agree with it. Every plan is made once here.
void TraceFile::open_plans(const Group& steps) {
  Dataset index = steps.dataset(kIndex, h5::Type::i32, {kAny, kAny});
  const std::uint64_t T = index.dims()[0], B = index.dims()[1];
  if (T < 1 || T > std::numeric_limits<std::int32_t>::max() || B < 1 || B > (1u << 24))
    throw error(index.where(), ": expected 1 to 2^31-1 steps of 1 to 2^24 rows, found ", h5::text_of(index.dims()));
  steps_ = static_cast<std::int64_t>(T);
  rows_ = static_cast<int>(B);
  index_ = index.read_vector<std::int32_t>();
  sequence_ = steps.read_vector<std::int64_t>(kSequence, {T, B});
  if (OptionalData rows = steps.find_dataset(kRows, h5::Type::i32, {T})) present_ = rows->read_vector<std::int32_t>();
  if (OptionalData path = steps.find_dataset(kPath, h5::Type::i8, {T})) path_ = path->read_vector<std::int8_t>();
  if (OptionalData tokens = steps.find_dataset(kLaunchTokens, h5::Type::i32, {T}))
    launch_tokens_ = tokens->read_vector<std::int32_t>();
  for (const std::string_view name : {kToken, kPosition}) steps.find_dataset(name, h5::Type::i32, {T, B});
  if (version_ >= 2) open_launches(steps);
  for (std::int64_t step = 0; step < steps_; ++step) plan(step);
  if (version_ >= 2) require_tables(steps);
}

void TraceFile::open_launches(const Group& steps) {
  const std::uint64_t T = static_cast<std::uint64_t>(steps_), B = static_cast<std::uint64_t>(rows_);
  if (OptionalData draft = steps.find_dataset(kDraft, h5::Type::i8, {T})) draft_ = draft->read_vector<std::int8_t>();
  const auto rows_of = [&](std::string_view name, std::vector<std::int32_t>& values) {
    if (OptionalData data = steps.find_dataset(name, h5::Type::i32, {T, B})) values = data->read_vector<std::int32_t>();
  };
  rows_of(kSource, source_);
  rows_of(kAccepted, accepted_);
}

void TraceFile::require_tables(const Group& steps) {
  const std::uint64_t T = static_cast<std::uint64_t>(steps_), B = static_cast<std::uint64_t>(rows_);
  OptionalData table = steps.find_dataset(kTable, h5::Type::i32, {T, B, kAny});
  if (!table) return;
  layout_.emplace_back("table", std::to_string(table->dims()[2]) + " columns a row");
  const auto entries = table->read_vector<std::int32_t>();
  const auto column = steps.read_vector<std::int32_t>(kColumn, {T, B});
  std::vector<std::int32_t> position;
  if (OptionalData data = steps.find_dataset(kPosition, h5::Type::i32, {T, B}))
    position = data->read_vector<std::int32_t>();
  require_columns(
      {rows_, static_cast<std::int64_t>(table->dims()[2]), encoding_.block_size, index_, entries, column, position},
      model_, present_, file_.path() + ": /steps");
}

void TraceFile::open_layer(const Group& steps, int layer) {
  const Group group = steps.group(std::to_string(layer));
  group.has(kEngineBlock);  // a capture's own note: known, not read
  const h5::Type act = h5::type_of(model_.act_dtype);
  const auto T = static_cast<std::uint64_t>(steps_), B = static_cast<std::uint64_t>(rows_);
  const auto dim = static_cast<std::uint64_t>(model_.dim()), HV = static_cast<std::uint64_t>(model_.HV);
  const std::uint64_t values = HV * static_cast<std::uint64_t>(model_.V);
  Layer data;
  if (encoding_.joined_qkvz) {
    data.mixed_qkv = group.dataset(kQkvz, act, {T, B, dim + values});
  } else {
    data.mixed_qkv = group.dataset(kMixedQkv, act, {T, B, dim});
    data.z = group.find_dataset(kZ, act, {T, B, values});
  }
  if (encoding_.joined_ba) {
    data.a = group.dataset(kBa, act, {T, B, 2 * HV});
  } else {
    data.a = group.dataset(kA, act, {T, B, HV});
    data.b = group.dataset(kB, act, {T, B, HV});
  }
  layers_.push_back(std::move(data));
}

void TraceFile::open_events(const Group& root) {
  const std::optional<Group> group = root.find_group(kEvents);
  if (!group) return;
  const auto step = group->read_vector<std::int32_t>(kStep, {kAny});
  const Dims E{step.size()};
  const auto layer = group->read_vector<std::int32_t>(kLayer, E);
  const auto block = group->read_vector<std::int32_t>(kBlock, E);
  const auto kind = group->read_vector<std::int8_t>(kKind, E);
  const auto source = group->read_vector<std::int32_t>(kSource, E);
  load_recurrent_ =
      group->find_dataset(kRecurrent, h5::type_of(model_.state_dtype), joined({kAny}, state_axes(model_)));
  const std::uint64_t N = load_recurrent_ ? load_recurrent_->rows() : 0;
  if (load_recurrent_)
    load_conv_ = group->dataset(kConv, h5::type_of(model_.conv_state_dtype), joined({N}, encoding_.conv.axes(model_)));
  load_offsets_ = open_offsets(*group, N);
  for (std::size_t e = 0; e < step.size(); ++e) {
    if (version_ < 2 && (kind[e] < 0 || kind[e] > static_cast<int>(EventKind::free)))
      throw error(file_.path(), ": events/kind[", e, "]: expected 0..3, found ", static_cast<int>(kind[e]));
    events_.push_back({step[e], layer[e], block[e], static_cast<EventKind>(kind[e]), source[e]});
  }
  if (version_ >= 2) open_reasons(*group);
  validate_events(model_, steps_, static_cast<std::int64_t>(N), events_, file_.path());
}

void TraceFile::open_reasons(const Group& group) {
  const Dims E{events_.size()};
  if (OptionalData data = group.find_dataset(kSequence, h5::Type::i64, E)) {
    const auto sequence = data->read_vector<std::int64_t>();
    for (std::size_t e = 0; e < events_.size(); ++e) events_[e].sequence = sequence[e];
  }
  if (OptionalData data = group.find_dataset(kWhy, h5::Type::i8, E)) {
    const auto why = data->read_vector<std::int8_t>();
    for (std::size_t e = 0; e < events_.size(); ++e) events_[e].why = static_cast<EventWhy>(why[e]);
  }
}

/// Where each window begins; empty: at column 0.
std::vector<std::int32_t> TraceFile::open_offsets(const Group& group, std::uint64_t count) const {
  if (version_ < 2) return {};
  OptionalData data = group.find_dataset(kConvOffset, h5::Type::i32, {count});
  if (!data) return {};
  auto offsets = data->read_vector<std::int32_t>();
  require_offsets(encoding_.conv, model_, offsets, data->where());
  return offsets;
}

void TraceFile::read_window(Dataset& data, std::uint64_t row, const std::vector<std::int32_t>& offsets, Bytes& conv) {
  if (encoding_.conv.plain(model_) && offsets.empty()) return read_entry(data, row, conv);
  read_entry(data, row, packed_);
  encoding_.conv.window(model_, packed_, offsets.empty() ? 0 : offsets[static_cast<std::size_t>(row)], conv);
}

void TraceFile::open_recorded(const Group& root) {
  const std::optional<Group> recorded = root.find_group(kRecorded);
  if (!recorded) return;
  for (int layer = 0; layer < model_.layers(); ++layer)
    if (const std::optional<Group> group = recorded->find_group(std::to_string(layer)))
      open_taps(*group, layers_[static_cast<std::size_t>(layer)]);
  if (const std::optional<Group> group = recorded->find_group(kState)) open_snapshots(*group);
}

void TraceFile::open_taps(const Group& group, Layer& layer) {
  const Dims TB{static_cast<std::uint64_t>(steps_), static_cast<std::uint64_t>(rows_)};
  for (std::size_t t = 0; t < kTaps; ++t) {
    const Tap tap = static_cast<Tap>(t);
    if (!recordable(tap)) continue;
    layer.taps[t] =
        group.find_dataset(name_of(tap), h5::type_of(shape_of(tap, model_).type), joined(TB, tap_axes(tap, model_)));
  }
}

void TraceFile::open_snapshots(const Group& group) {
  const auto step = group.read_vector<std::int32_t>(kStep, {kAny});
  const Dims S{step.size()};
  const auto layer = group.read_vector<std::int32_t>(kLayer, S);
  const auto block = group.read_vector<std::int32_t>(kBlock, S);
  state_recurrent_ = group.dataset(kRecurrent, h5::type_of(model_.state_dtype), joined(S, state_axes(model_)));
  state_conv_ = group.dataset(kConv, h5::type_of(model_.conv_state_dtype), joined(S, encoding_.conv.axes(model_)));
  state_offsets_ = open_offsets(group, step.size());
  for (std::size_t s = 0; s < step.size(); ++s)
    snapshots_.push_back({step[s], layer[s], block[s], static_cast<std::int64_t>(s)});
  validate_snapshots(model_, steps_, snapshots_, group.where());
  std::stable_sort(snapshots_.begin(), snapshots_.end(), [](const Snapshot& x, const Snapshot& y) {
    return std::pair(x.step, x.layer) < std::pair(y.step, y.layer);
  });
}

/// `step` as an entry of a first axis; a caller's mistake is an Error, because steps come from command lines too.
std::uint64_t TraceFile::entry(std::int64_t step) const {
  if (step < 0 || step >= steps_) throw error(path(), ": expected a step in 0..", steps_ - 1, ", found ", step);
  return static_cast<std::uint64_t>(step);
}

StepPlan TraceFile::plan(std::int64_t step) const {
  const std::size_t t = entry(step), B = static_cast<std::size_t>(rows_);
  const Path path = path_.empty() ? Path::decode : static_cast<Path>(path_[t]);
  const int present = present_.empty() ? rows_ : present_[t];
  const auto rows_of = [&](const std::vector<std::int32_t>& values) {
    return values.empty() ? std::span<const std::int32_t>() : std::span(values).subspan(t * B, B);
  };
  const bool last = draft_.empty() || t + 1 == draft_.size() || draft_[t + 1] == 0;
  const Launch launch{draft_.empty() ? 0 : draft_[t], last, rows_of(source_), rows_of(accepted_)};
  StepPlan plan = make_plan(model_, step, path, rows_of(index_), std::span(sequence_).subspan(t * B, B), present,
                            file_.path() + ": /steps", launch);
  if (launch_tokens_.empty()) return plan;
  plan.launch_tokens = launch_tokens_[t];
  const auto active = std::ranges::count_if(plan.block, [](std::int32_t block) { return block >= 0; });
  if (plan.launch_tokens != 0 && plan.launch_tokens < active)
    throw error(file_.path(), ": /steps/launch_tokens[", step, "]: expected 0 (not known) or the ", active,
                " active rows and more, found ", plan.launch_tokens);
  return plan;
}

void TraceFile::inputs(std::int64_t step, int layer, StepInputs& out) {
  Layer& data = layers_.at(static_cast<std::size_t>(layer));
  const std::uint64_t t = entry(step);
  const std::size_t word = size_of(model_.act_dtype);
  out.z.clear();
  if (encoding_.joined_qkvz) {
    read_entry(data.mixed_qkv, t, packed_);
    encoding_.qkvz_qkv.apply(packed_, word, out.mixed_qkv);
    encoding_.qkvz_z.apply(packed_, word, out.z);
  } else {
    read_unpacked(data.mixed_qkv, t, encoding_.qkv, packed_, out.mixed_qkv);
    if (data.z) read_entry(*data.z, t, out.z);
  }
  if (encoding_.joined_ba) {
    read_entry(data.a, t, packed_);
    encoding_.ba_a.apply(packed_, word, out.a);
    encoding_.ba_b.apply(packed_, word, out.b);
  } else {
    read_entry(data.a, t, out.a);
    read_entry(*data.b, t, out.b);
  }
}

void TraceFile::load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) {
  GDNSIM_CHECK(load_recurrent_ && source >= 0 && static_cast<std::uint64_t>(source) < load_recurrent_->rows());
  read_entry(*load_recurrent_, static_cast<std::uint64_t>(source), recurrent);
  read_window(*load_conv_, static_cast<std::uint64_t>(source), load_offsets_, conv);
}

bool TraceFile::has_recording() const {
  if (!snapshots_.empty()) return true;
  for (int layer = 0; layer < model_.layers(); ++layer)
    if (!taps(layer).empty()) return true;
  return false;
}

std::string TraceFile::content_digest() {
  if (digest_.empty()) digest_ = content_digest_of(*this);
  return digest_;
}

TapSet TraceFile::taps(int layer) const {
  TapSet set;
  const Layer& data = layers_.at(static_cast<std::size_t>(layer));
  for (std::size_t t = 0; t < kTaps; ++t)
    if (data.taps[t]) set.add(static_cast<Tap>(t));
  return set;
}

void TraceFile::read_tap(Tap tap, std::int64_t step, int layer, Bytes& out) {
  OptionalData& data = layers_.at(static_cast<std::size_t>(layer)).taps[static_cast<std::size_t>(tap)];
  GDNSIM_CHECK(data.has_value());
  read_entry(*data, entry(step), out);
}

void TraceFile::read_tap_rows(Tap tap, std::int64_t step, int layer, std::span<const int> rows, Bytes& out) {
  OptionalData& data = layers_.at(static_cast<std::size_t>(layer)).taps[static_cast<std::size_t>(tap)];
  GDNSIM_CHECK(data.has_value());
  out.resize(data->row_bytes());
  const std::size_t bytes = data->row_bytes() / static_cast<std::size_t>(rows_);
  for (int row : rows)
    data->read_entry(entry(step), static_cast<std::uint64_t>(row),
                     std::span(out).subspan(static_cast<std::size_t>(row) * bytes, bytes));
}

void TraceFile::read_snapshot(const Snapshot& snapshot, Bytes& recurrent, Bytes& conv) {
  GDNSIM_CHECK(state_recurrent_ && snapshot.at >= 0 &&
               static_cast<std::uint64_t>(snapshot.at) < state_recurrent_->rows());
  read_entry(*state_recurrent_, static_cast<std::uint64_t>(snapshot.at), recurrent);
  read_window(*state_conv_, static_cast<std::uint64_t>(snapshot.at), state_offsets_, conv);
}

/// Chunks are found and unpacked when they are read, by the HDF5 library: what it does not survive there has to happen in the
/// child. Every index is walked, and as much data read as the budget allows. Errors wait until somebody asks.
void TraceFile::try_chunks() {
  std::uint64_t budget = std::uint64_t{64} << 20;  // unpacked
  Bytes bytes;
  const auto look = [&](Dataset& data) {
    if (!data.chunked()) return;
    try {
      data.require_whole();
      if (data.bytes() > budget) return;
      budget -= data.bytes();
      bytes.resize(data.row_bytes());
      for (std::uint64_t row = 0; row < data.rows(); ++row) data.read_rows(row, 1, bytes);
    } catch (const Error&) {
    }
  };
  const auto look_if = [&](OptionalData& data) {
    if (data) look(*data);
  };
  for (Layer& layer : layers_) {
    for (Dataset* data : {&layer.mixed_qkv, &layer.a}) look(*data);
    look_if(layer.b), look_if(layer.z);
    for (OptionalData& tap : layer.taps) look_if(tap);
  }
  for (OptionalData* data : {&load_recurrent_, &load_conv_, &state_recurrent_, &state_conv_}) look_if(*data);
}

}  // namespace

std::unique_ptr<Trace> open_trace(const std::string& path) {
  try_in_child(path, [&] { TraceFile(path).try_chunks(); });
  return std::make_unique<TraceFile>(path);
}

}  // namespace gdnsim
