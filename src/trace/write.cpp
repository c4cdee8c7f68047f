// Writing a trace: HDF5 lays the whole file out under a temporary name, the space is reserved, the data then goes in with
// pwrite at the datasets' offsets, where every failure is seen. `finish` sets @complete and renames.
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "file/model_io.hpp"
#include "file/raw_file.hpp"
#include "file/schema.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/trace.hpp"
#include "trace/layout.hpp"

namespace gdnsim {

using namespace schema;

namespace {

using h5::Dims;
using h5::Group;

std::uint64_t axis(std::int64_t size) { return static_cast<std::uint64_t>(size); }

/// Where a dataset's entries lie in the file, and which of them were written.
struct Region {
  std::string where;
  std::uint64_t offset = 0;
  std::size_t row_bytes = 0;
  std::vector<bool> written;
};

Region make_region(Group& group, std::string_view name, h5::Type type, const Dims& dims) {
  h5::Dataset data = group.create_dataset(name, type, dims);
  Region region{data.where(), data.bytes() > 0 ? data.file_offset() : 0, data.row_bytes(),
                std::vector<bool>(data.rows())};
  data.close();
  return region;
}

/// One layer's datasets with a step axis.
struct LayerRegions {
  Region mixed_qkv, a, b, z;
  std::map<Tap, Region> taps;
};

/// All datasets that are filled after the skeleton was made.
struct Regions {
  std::vector<Patch> completion;  // what sets @complete
  Region index, sequence, rows, path, launch_tokens, draft, source, accepted, load_recurrent, load_conv,
      state_recurrent, state_conv;
  std::vector<LayerRegions> layers;
};

void refuse_size(const std::string& where, std::size_t expected, std::size_t found) {
  if (expected != found) throw error(where, ": expected ", expected, " bytes, found ", found);
}

void validate_params(const LayerParams& params, const Model& model, const std::string& where) {
  const std::size_t word = size_of(model.act_dtype), HV = axis(model.HV);
  refuse_size(where + "/A_log", HV * sizeof(float), params.A_log.size() * sizeof(float));
  refuse_size(where + "/dt_bias", HV * sizeof(float), params.dt_bias.size() * sizeof(float));
  refuse_size(where + "/conv_weight", axis(model.dim()) * axis(model.W) * word, params.conv_weight.size());
  if (!params.conv_bias.empty()) refuse_size(where + "/conv_bias", axis(model.dim()) * word, params.conv_bias.size());
  if (!params.norm_weight.empty()) refuse_size(where + "/norm_weight", axis(model.V) * word, params.norm_weight.size());
  refuse_nan(params, model, where);
}

/// What the reader would refuse is never written.
void validate_header(const TraceHeader& header, const std::string& path) {
  const Model& model = header.model;
  validate(model, path + ": /model");
  if (header.steps < 1 || header.rows < 1)
    throw error(path, ": expected at least one step and one row, found ", header.steps, " and ", header.rows);
  if (header.params.size() != model.layer_ids.size())
    throw error(path, ": /params: expected ", model.layers(), " layers, found ", header.params.size());
  for (std::size_t l = 0; l < header.params.size(); ++l)
    validate_params(header.params[l], model, path + ": /params/" + std::to_string(l));
  validate_events(model, header.steps, header.load_rows, header.events, path);
  validate_snapshots(model, header.steps, header.snapshots, path + ": /recorded/state");
  for (const Tap tap : {Tap::state, Tap::conv_state})
    if (header.taps.has(tap))
      throw error(path, ": /recorded: expected no tap ", name_of(tap), ": states are snapshots");
}

void write_params(Group& root, const TraceHeader& header) {
  const Model& model = header.model;
  const h5::Type act = h5::type_of(model.act_dtype);
  Group all = root.create_group(kParams);
  for (std::size_t l = 0; l < header.params.size(); ++l) {
    const LayerParams& params = header.params[l];
    Group group = all.create_group(std::to_string(l));
    const auto write = [&](std::string_view name, h5::Type type, const Dims& dims, std::span<const std::byte> bytes) {
      if (bytes.empty()) return;
      h5::Dataset data = group.create_dataset(name, type, dims);
      data.write_all(bytes);
      data.close();
    };
    write(kALog, h5::Type::f32, {axis(model.HV)}, std::as_bytes(std::span(params.A_log)));
    write(kDtBias, h5::Type::f32, {axis(model.HV)}, std::as_bytes(std::span(params.dt_bias)));
    write(kConvWeight, act, {axis(model.dim()), axis(model.W)}, params.conv_weight);
    write(kConvBias, act, {axis(model.dim())}, params.conv_bias);
    write(kNormWeight, act, {axis(model.V)}, params.norm_weight);
  }
}

void lay_out_steps(Group& root, const TraceHeader& header, Regions& regions) {
  const Model& model = header.model;
  const h5::Type act = h5::type_of(model.act_dtype);
  const std::uint64_t T = axis(header.steps), B = axis(header.rows), HV = axis(model.HV);
  Group steps = root.create_group(kSteps);
  regions.index = make_region(steps, kIndex, h5::Type::i32, {T, B});
  regions.sequence = make_region(steps, kSequence, h5::Type::i64, {T, B});
  regions.rows = make_region(steps, kRows, h5::Type::i32, {T});
  if (header.has_path) regions.path = make_region(steps, kPath, h5::Type::i8, {T});
  if (header.has_launch_tokens) regions.launch_tokens = make_region(steps, kLaunchTokens, h5::Type::i32, {T});
  if (header.has_drafts) regions.draft = make_region(steps, kDraft, h5::Type::i8, {T});
  if (header.has_source) regions.source = make_region(steps, kSource, h5::Type::i32, {T, B});
  if (header.has_accepted) regions.accepted = make_region(steps, kAccepted, h5::Type::i32, {T, B});
  for (int l = 0; l < model.layers(); ++l) {
    Group group = steps.create_group(std::to_string(l));
    LayerRegions layer;
    layer.mixed_qkv = make_region(group, kMixedQkv, act, {T, B, axis(model.dim())});
    layer.a = make_region(group, kA, act, {T, B, HV});
    layer.b = make_region(group, kB, act, {T, B, HV});
    if (header.has_z) layer.z = make_region(group, kZ, act, {T, B, HV * axis(model.V)});
    regions.layers.push_back(std::move(layer));
  }
}

/// One column of a table of structs.
template <class T, class Row, class Field>
void write_column(Group& group, std::string_view name, const std::vector<Row>& rows, Field field) {
  std::vector<T> column;
  for (const Row& row : rows) column.push_back(static_cast<T>(field(row)));
  group.create_vector(name, {column.size()}, column);
}

void lay_out_events(Group& root, const TraceHeader& header, Regions& regions) {
  if (header.events.empty() && header.load_rows == 0) return;
  const Model& model = header.model;
  Group group = root.create_group(kEvents);
  write_column<std::int32_t>(group, kStep, header.events, [](const Event& event) { return event.step; });
  write_column<std::int32_t>(group, kLayer, header.events, [](const Event& event) { return event.layer; });
  write_column<std::int32_t>(group, kBlock, header.events, [](const Event& event) { return event.block; });
  write_column<std::int8_t>(group, kKind, header.events, [](const Event& event) { return event.kind; });
  write_column<std::int32_t>(group, kSource, header.events, [](const Event& event) { return event.source; });
  if (std::ranges::any_of(header.events, [](const Event& event) { return event.sequence != -1; }))
    write_column<std::int64_t>(group, kSequence, header.events, [](const Event& event) { return event.sequence; });
  if (std::ranges::any_of(header.events, [](const Event& event) { return event.why != EventWhy::none; }))
    write_column<std::int8_t>(group, kWhy, header.events, [](const Event& event) { return event.why; });
  const Dims N{axis(header.load_rows)};
  regions.load_recurrent = make_region(group, kRecurrent, h5::type_of(model.state_dtype), joined(N, state_axes(model)));
  regions.load_conv = make_region(group, kConv, h5::type_of(model.conv_state_dtype), joined(N, conv_axes(model)));
}

void lay_out_snapshots(Group& recorded, const TraceHeader& header, Regions& regions) {
  const Model& model = header.model;
  Group group = recorded.create_group(kState);
  write_column<std::int32_t>(group, kStep, header.snapshots, [](const Snapshot& snapshot) { return snapshot.step; });
  write_column<std::int32_t>(group, kLayer, header.snapshots, [](const Snapshot& snapshot) { return snapshot.layer; });
  write_column<std::int32_t>(group, kBlock, header.snapshots, [](const Snapshot& snapshot) { return snapshot.block; });
  const Dims S{header.snapshots.size()};
  regions.state_recurrent =
      make_region(group, kRecurrent, h5::type_of(model.state_dtype), joined(S, state_axes(model)));
  regions.state_conv = make_region(group, kConv, h5::type_of(model.conv_state_dtype), joined(S, conv_axes(model)));
}

void lay_out_recorded(Group& root, const TraceHeader& header, Regions& regions) {
  if (header.taps.empty() && header.snapshots.empty()) return;
  const Dims TB{axis(header.steps), axis(header.rows)};
  Group recorded = root.create_group(kRecorded);
  for (int l = 0; l < header.model.layers() && !header.taps.empty(); ++l) {
    Group group = recorded.create_group(std::to_string(l));
    for (std::size_t t = 0; t < kTaps; ++t) {
      const Tap tap = static_cast<Tap>(t);
      if (!header.taps.has(tap)) continue;
      const h5::Type type = h5::type_of(shape_of(tap, header.model).type);
      regions.layers[axis(l)].taps[tap] =
          make_region(group, name_of(tap), type, joined(TB, tap_axes(tap, header.model)));
    }
  }
  if (!header.snapshots.empty()) lay_out_snapshots(recorded, header, regions);
}

constexpr std::uint64_t kAlignFrom = 4096;  // bytes: larger datasets begin at a page

/// Creates the whole file but its bulk data, not yet @complete.
Regions lay_out(RawFile out, const std::string& path, const TraceHeader& header) {
  Regions regions;
  h5::File file = h5::File::create(std::move(out), path, kAlignFrom);
  {
    Group root = file.root();
    root.set_string(kFormat, kTraceFormat);
    root.set_int(kVersion, version_of(header));
    root.set_int(kComplete, 0);
    write_model(root, header.model);
    write_params(root, header);
    lay_out_steps(root, header, regions);
    lay_out_events(root, header, regions);
    lay_out_recorded(root, header, regions);
    write_provenance(root, header.provenance);
  }
  regions.completion = file.close_and_prepare([](Group& root) { root.overwrite_int(kComplete, 1); });
  return regions;
}

class TraceFileWriter final : public TraceWriter {
 public:
  TraceFileWriter(const std::string& path, const TraceHeader& header, bool force);
  void write_plan(const StepPlan& plan) override;
  void write_inputs(std::int64_t step, int layer, const StepInputs& inputs) override;
  void write_load_row(std::int64_t source, std::span<const std::byte> recurrent,
                      std::span<const std::byte> conv) override;
  void write_tap(Tap tap, std::int64_t step, int layer, std::span<const std::byte> rows) override;
  void write_snapshot(std::int64_t at, std::span<const std::byte> recurrent, std::span<const std::byte> conv) override;
  void finish() override;

 private:
  void write_launch(const StepPlan& plan);
  LayerRegions& layer(int layer);
  void put(Region& region, std::int64_t row, std::span<const std::byte> bytes);
  void require_filled() const;
  void require(int failed, std::string_view what) const;

  std::string path_;
  bool force_;
  Model model_;
  std::vector<Event> events_;
  bool has_z_, has_path_, has_launch_tokens_, has_drafts_, has_source_, has_accepted_;
  std::optional<NewFile> fresh_;
  Regions regions_;
  RawFile file_;
};

TraceFileWriter::TraceFileWriter(const std::string& path, const TraceHeader& header, bool force)
    : path_(path),
      force_(force),
      model_(header.model),
      events_(header.events),
      has_z_(header.has_z),
      has_path_(header.has_path),
      has_launch_tokens_(header.has_launch_tokens),
      has_drafts_(header.has_drafts),
      has_source_(header.has_source),
      has_accepted_(header.has_accepted) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    throw error(path, ": expected a regular file or nothing, found another kind of file");
  if (!force && ::lstat(path.c_str(), &status) == 0) throw error(path, ": already exists (--force replaces it)");
  validate_header(header, path);
  fresh_.emplace(path);
  try {
    regions_ = lay_out(fresh_->open(), path, header);
  } catch (const Error& failed) {  // HDF5 does not say why it could not write
    throw Error(failed.what() + limit_text());
  }
  file_ = fresh_->open();
  require(file_.reserve(file_.size()), "its space cannot be reserved");
}

void TraceFileWriter::require(int failed, std::string_view what) const {
  if (failed != 0) throw error(path_, ": ", what, ": ", errno_text(failed));
}

LayerRegions& TraceFileWriter::layer(int layer) {
  GDNSIM_CHECK(layer >= 0 && axis(layer) < regions_.layers.size());
  return regions_.layers[axis(layer)];
}

void TraceFileWriter::put(Region& region, std::int64_t row, std::span<const std::byte> bytes) {
  if (row < 0 || axis(row) >= region.written.size())
    throw error(region.where.empty() ? path_ : region.where, "[", row, "]: expected an entry of ",
                region.written.size());
  refuse_size(region.where, region.row_bytes, bytes.size());
  const int failed = file_.write_at(region.offset + axis(row) * region.row_bytes, bytes);
  if (failed != 0) throw error(region.where, "[", row, "]: cannot be written: ", errno_text(failed));
  region.written[axis(row)] = true;
}

void TraceFileWriter::write_plan(const StepPlan& plan) {
  const std::int32_t present = plan.present;
  const auto path = static_cast<std::int8_t>(plan.path);
  if (!has_path_ && plan.path != Path::decode)
    throw error(path_, ": /steps/path: the header says decode steps only, found ", name_of(plan.path), " at step ",
                plan.step);
  make_plan(model_, plan.step, plan.path, plan.index, plan.sequence, plan.present, path_ + ": /steps",
            {plan.draft, plan.last_draft, plan.source, plan.accepted});  // the reader's rules
  write_launch(plan);
  put(regions_.index, plan.step, std::as_bytes(std::span(plan.index)));
  put(regions_.sequence, plan.step, std::as_bytes(std::span(plan.sequence)));
  put(regions_.rows, plan.step, std::as_bytes(std::span(&present, 1)));
  if (has_path_) put(regions_.path, plan.step, std::as_bytes(std::span(&path, 1)));
}

/// What the header did not announce has no place in the file.
void TraceFileWriter::write_launch(const StepPlan& plan) {
  const auto announced = [&](bool has, bool says, std::string_view name) {
    if (says && !has)
      throw error(path_, ": /steps/", name, ": the header says there is none, found one at step ", plan.step);
  };
  announced(has_drafts_, plan.in_launch(), kDraft);
  announced(has_source_, !plan.source.empty(), kSource);
  announced(has_accepted_, !plan.accepted.empty(), kAccepted);
  announced(has_launch_tokens_, plan.launch_tokens != 0, kLaunchTokens);
  const auto tokens = static_cast<std::int32_t>(plan.launch_tokens);
  if (has_launch_tokens_) put(regions_.launch_tokens, plan.step, std::as_bytes(std::span(&tokens, 1)));
  const auto draft = static_cast<std::int8_t>(plan.draft);
  if (has_drafts_) put(regions_.draft, plan.step, std::as_bytes(std::span(&draft, 1)));
  const auto rows = [&](bool has, Region& region, std::vector<std::int32_t> values, std::int32_t absent) {
    if (!has) return;
    if (values.empty()) values.assign(plan.block.size(), absent);
    put(region, plan.step, std::as_bytes(std::span(values)));
  };
  rows(has_source_, regions_.source, plan.source, -1);
  rows(has_accepted_, regions_.accepted, plan.accepted, 0);
}

void TraceFileWriter::write_inputs(std::int64_t step, int layer_position, const StepInputs& inputs) {
  LayerRegions& regions = layer(layer_position);
  put(regions.mixed_qkv, step, inputs.mixed_qkv);
  put(regions.a, step, inputs.a);
  put(regions.b, step, inputs.b);
  if (has_z_) put(regions.z, step, inputs.z);
}

void TraceFileWriter::write_load_row(std::int64_t source, std::span<const std::byte> recurrent,
                                     std::span<const std::byte> conv) {
  put(regions_.load_recurrent, source, recurrent);
  put(regions_.load_conv, source, conv);
}

void TraceFileWriter::write_tap(Tap tap, std::int64_t step, int layer_position, std::span<const std::byte> rows) {
  const auto region = layer(layer_position).taps.find(tap);
  GDNSIM_CHECK(region != layer(layer_position).taps.end());
  put(region->second, step, rows);
}

void TraceFileWriter::write_snapshot(std::int64_t at, std::span<const std::byte> recurrent,
                                     std::span<const std::byte> conv) {
  put(regions_.state_recurrent, at, recurrent);
  put(regions_.state_conv, at, conv);
}

/// A trace with holes would replay as zeros. A load row that no event names may stay empty.
void TraceFileWriter::require_filled() const {
  const auto filled = [](const Region& region) {
    for (std::size_t row = 0; row < region.written.size(); ++row)
      if (!region.written[row]) throw error(region.where, "[", row, "]: was never written");
  };
  for (const Region* region :
       {&regions_.index, &regions_.sequence, &regions_.rows, &regions_.path, &regions_.draft, &regions_.launch_tokens,
        &regions_.source, &regions_.accepted, &regions_.state_recurrent})
    filled(*region);
  for (const LayerRegions& layer : regions_.layers) {
    for (const Region* region : {&layer.mixed_qkv, &layer.a, &layer.b, &layer.z}) filled(*region);
    for (const auto& [tap, region] : layer.taps) filled(region);
  }
  for (const Event& event : events_)
    if (event.kind == EventKind::load && !regions_.load_recurrent.written[axis(event.source)])
      throw error(regions_.load_recurrent.where, "[", event.source, "]: was never written");
}

void TraceFileWriter::finish() {
  require_filled();
  require(file_.sync(), "cannot be synced");
  for (const Patch& patch : regions_.completion)
    require(file_.write_at(patch.offset, patch.bytes), "cannot be completed");
  require(file_.sync(), "cannot be synced");
  require(file_.close(), "cannot be closed");
  require(fresh_->put_in_place(force_), "cannot be put into place");
}

}  // namespace

std::unique_ptr<TraceWriter> create_trace(const std::string& path, const TraceHeader& header, bool force) {
  return std::make_unique<TraceFileWriter>(path, header, force);
}

}  // namespace gdnsim
