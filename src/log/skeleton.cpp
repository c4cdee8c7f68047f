#include "log/skeleton.hpp"

#include <algorithm>
#include <limits>

#include "file/model_io.hpp"
#include "file/schema.hpp"
#include "gdnsim/error.hpp"
#include "log/chain.hpp"
#include "log/checkpoint.hpp"
#include "log/events.hpp"

namespace gdnsim {

using namespace schema;

namespace {

constexpr int kMaxRows = 1 << 24;

std::string text_of(const StatePolicy& policy) {
  return policy.kind == StatePolicy::Kind::full ? "full" : "every:" + std::to_string(policy.n);
}

// ---- contracts: each field a string attribute of /contract/decode and /contract/mixed

void write_contract(h5::Group& parent, std::string_view name, const Contract& contract) {
  h5::Group group = parent.create_group(name);
  group.set_string(kName, contract.name);
  for (const auto& [field, value] : contract_fields(contract)) group.set_string(field, value);
}

Contract read_contract(const h5::Group& parent, std::string_view name) {
  const h5::Group group = parent.group(name);
  Contract contract;
  contract.name = group.string_attribute(kName);
  for (const auto& [field, value] : contract_fields(contract)) {
    if (added_later(field) && !group.has_attribute(field)) continue;
    const std::string text = group.string_attribute(field);
    try {
      set_contract_field(contract, field, text);
    } catch (const Error& bad) {
      throw error(group.where(), ": ", bad.what());
    }
  }
  return contract;
}

// ---- who took part: /steps

void write_steps(h5::Group& root, const LogHeader& header) {
  const StepColumns columns = columns_of(header.plans);
  const std::uint64_t T = header.plans.size(), B = static_cast<std::uint64_t>(header.rows);
  h5::Group group = root.create_group(kSteps);
  group.set_int(kFirstStep, header.first_step);
  group.create_vector(kIndex, {T, B}, columns.index);
  group.create_vector(kSequence, {T, B}, columns.sequence);
  group.create_vector(kRows, {T}, columns.rows);
  group.create_vector(kPath, {T}, columns.path);
  write_launches(group, header);
}

/// What version 2 says of launches, [T] and [T, B] each; empty where it says nothing.
struct Launches {
  std::vector<std::int8_t> draft;
  std::vector<std::int32_t> source, accepted;
};

Launches read_launches(const h5::Group& steps, std::uint64_t T, std::uint64_t B) {
  Launches launches;
  if (auto draft = steps.find_dataset(kDraft, h5::Type::i8, {T})) launches.draft = draft->read_vector<std::int8_t>();
  if (auto source = steps.find_dataset(kSource, h5::Type::i32, {T, B}))
    launches.source = source->read_vector<std::int32_t>();
  if (auto accepted = steps.find_dataset(kAccepted, h5::Type::i32, {T, B}))
    launches.accepted = accepted->read_vector<std::int32_t>();
  return launches;
}

Launch launch_at(const Launches& launches, std::size_t t, std::size_t B) {
  const auto rows_of = [&](const std::vector<std::int32_t>& values) {
    return values.empty() ? std::span<const std::int32_t>() : std::span(values).subspan(t * B, B);
  };
  const auto& draft = launches.draft;
  return {draft.empty() ? 0 : draft[t], draft.empty() || t + 1 == draft.size() || draft[t + 1] == 0,
          rows_of(launches.source), rows_of(launches.accepted)};
}

void read_steps(const h5::Group& root, LogHeader& header, std::int64_t version) {
  const h5::Group group = root.group(kSteps);
  header.first_step = group.int_attribute(kFirstStep);
  if (header.first_step < 0 || header.first_step > std::numeric_limits<std::int32_t>::max())
    throw error(group.where(), " @", kFirstStep, ": expected 0 to 2^31 - 1, found ", header.first_step);
  h5::Dataset indices = group.dataset(kIndex, h5::Type::i32, {h5::kAny, h5::kAny});
  const std::uint64_t T = indices.dims()[0], B = indices.dims()[1];
  if (T < 1 || B < 1 || B > kMaxRows)
    throw error(indices.where(), ": expected at least one step and row, found ", h5::text_of({T, B}));
  const auto index = indices.read_vector<std::int32_t>();
  const auto sequence = group.read_vector<std::int64_t>(kSequence, {T, B});
  const auto rows = group.read_vector<std::int32_t>(kRows, {T});
  const auto path = group.read_vector<std::int8_t>(kPath, {T});
  const Launches launches = version < 2 ? Launches{} : read_launches(group, T, B);
  header.steps = static_cast<std::int64_t>(T);
  header.rows = static_cast<int>(B);
  for (std::size_t t = 0; t < T; ++t)
    header.plans.push_back(make_plan(header.model, header.first_step + static_cast<std::int64_t>(t),
                                     static_cast<Path>(path[t]), std::span(index).subspan(t * B, B),
                                     std::span(sequence).subspan(t * B, B), rows[t], group.where(),
                                     launch_at(launches, t, B)));
}

// ---- which layers, taps and states

void read_layers(const h5::Group& root, LogHeader& header) {
  const h5::Group group = root.group(kModel);
  for (std::int32_t layer : group.read_vector<std::int32_t>(kLayers, {h5::kAny})) header.layers.push_back(layer);
}

TapSet read_taps(const h5::Group& root) {
  const h5::Group group = root.group(kOut);
  TapSet taps;
  for (std::size_t i = 0; i < kTaps; ++i) {
    const Tap tap = static_cast<Tap>(i);
    if (is_output_tap(tap) && group.has(name_of(tap))) taps.add(tap);
  }
  return taps;
}

StatePolicy read_policy(const h5::Group& root) {
  const std::optional<h5::Group> group = root.find_group(kState);
  if (!group) return {StatePolicy::Kind::digest, 1};
  const std::string text = group->string_attribute(kPolicy);
  try {
    const StatePolicy policy = state_policy_from(text);
    if (policy.kind != StatePolicy::Kind::digest) return policy;
  } catch (const Error&) {
  }
  throw error(group->where(), " @", kPolicy, ": expected full or every:N");
}

void write_state(h5::Group& root, const LogHeader& header, const LogLayout& layout) {
  if (layout.state.empty()) return;
  std::vector<std::int32_t> steps;
  for (std::int64_t kept : layout.kept) steps.push_back(static_cast<std::int32_t>(header.first_step + kept));
  h5::Group group = root.create_group(kState);
  group.set_string(kPolicy, text_of(header.state));
  group.create_vector(kStep, {steps.size()}, steps);
  group.create_vector(kBlock, {steps.size(), static_cast<std::uint64_t>(header.rows)}, layout.kept_blocks);
}

/// /state/step and /state/block only repeat what the policy and the plans say; they are for other readers.
void require_state(const h5::Group& root, const LogHeader& header, const LogLayout& layout) {
  if (layout.state.empty()) return;
  const h5::Group group = root.group(kState);
  const std::uint64_t S = layout.kept.size();
  const auto steps = group.read_vector<std::int32_t>(kStep, {S});
  for (std::size_t s = 0; s < S; ++s)
    if (steps[s] != header.first_step + layout.kept[s])
      throw error(group.where(kStep), "[", s, "]: expected ", header.first_step + layout.kept[s], ", found ", steps[s]);
  const auto blocks = group.read_vector<std::int32_t>(kBlock, {S, static_cast<std::uint64_t>(header.rows)});
  const auto differ = std::ranges::mismatch(blocks, layout.kept_blocks);
  if (differ.in1 == blocks.end()) return;
  const std::size_t at = static_cast<std::size_t>(differ.in1 - blocks.begin()),
                    B = static_cast<std::size_t>(header.rows);
  throw error(group.where(kBlock), "[", at / B, ", ", at % B, "]: expected ", *differ.in2, ", found ", *differ.in1);
}

void write_checkpoints(h5::Group& root, const LogHeader& header, const LogLayout& layout) {
  if (layout.checkpoint.empty()) return;
  std::vector<std::int32_t> steps;
  for (std::int64_t t : layout.checkpoints) steps.push_back(static_cast<std::int32_t>(header.first_step + t));
  h5::Group group = root.create_group(kCheckpoint);
  group.set_int(kEvery, header.checkpoint_every);
  group.create_vector(kStep, {steps.size()}, steps);
  group.create_vector(kBlock, {header.checkpoint_blocks.size()}, header.checkpoint_blocks);
}

void read_checkpoints(const h5::Group& root, LogHeader& header) {
  const std::optional<h5::Group> group = root.find_group(kCheckpoint);
  if (!group) return;
  header.checkpoint_every = group->int_attribute(kEvery);
  header.checkpoint_blocks = group->read_vector<std::int32_t>(kBlock, {h5::kAny});
  if (!has_checkpoints(header))
    throw error(group->where(), ": expected @", kEvery, " from 1 to less than the steps, and blocks; found ",
                header.checkpoint_every, " and ", header.checkpoint_blocks.size(), " blocks");
}

/// /checkpoint/step only repeats what @every says; it is for other readers.
void require_checkpoints(const h5::Group& root, const LogHeader& header, const LogLayout& layout) {
  if (layout.checkpoint.empty()) return;
  const h5::Group group = root.group(kCheckpoint);
  const auto steps = group.read_vector<std::int32_t>(kStep, {layout.checkpoints.size()});
  for (std::size_t c = 0; c < steps.size(); ++c)
    if (steps[c] != header.first_step + layout.checkpoints[c])
      throw error(group.where(kStep), "[", c, "]: expected ", header.first_step + layout.checkpoints[c], ", found ",
                  steps[c]);
}

// ---- header digests and data datasets

void write_parts(h5::Group& root, const LogHeader& header) {
  for (const HeaderPart& part : header_parts(header))
    root.set_string(std::string(kDigestPrefix) + part.name, hex(part.digest));
}

void require_parts(const h5::Group& root, const LogHeader& header, const std::string& path) {
  for (const HeaderPart& part : header_parts(header)) {
    const std::string name = std::string(kDigestPrefix) + part.name;
    if (root.string_attribute(name) != hex(part.digest))
      throw error(path, ": ", part.object, ": the content does not match its digest @", name, ": the file is damaged");
  }
}

void create_data(h5::Group& root, LogLayout& layout) {
  for (Extent* extent : layout.extents()) {
    std::optional<h5::Group> group;
    if (!extent->group.empty())
      group = root.has(extent->group) ? root.group(extent->group) : root.create_group(extent->group);
    h5::Dataset data = (group ? *group : root).create_dataset(extent->name, extent->type, extent->dims);
    extent->offset = data.file_offset();
    data.close();
  }
}

void find_data(const h5::Group& root, LogLayout& layout) {
  for (Extent* extent : layout.extents()) {
    std::optional<h5::Group> group;
    if (!extent->group.empty()) group = root.group(extent->group);
    extent->offset = (group ? *group : root).dataset(extent->name, extent->type, extent->dims).file_offset();
  }
}

}  // namespace

LogLayout write_skeleton(RawFile out, const std::string& shown, const LogHeader& header) {
  LogLayout layout = lay_out(header, shown);
  h5::File file = h5::File::create(std::move(out), shown, 1);
  {
    h5::Group root = file.root();
    root.set_string(kFormat, kLogFormat);
    root.set_int(kVersion, version_of(header));
    write_model(root, header.model);
    root.group(kModel).create_vector(kLayers, {header.layers.size()},
                                     std::vector<std::int32_t>(header.layers.begin(), header.layers.end()));
    h5::Group contracts = root.create_group(kContract);
    write_contract(contracts, kDecode, header.contracts.decode);
    write_contract(contracts, kMixed, header.contracts.mixed);
    root.create_text(kSource, header.source);
    write_steps(root, header);
    write_events(root, header);
    write_provenance(root, header.provenance);
    write_state(root, header, layout);
    write_checkpoints(root, header, layout);
    write_parts(root, header);
    create_data(root, layout);
  }
  file.close();
  return layout;
}

LogSkeleton read_skeleton(const std::string& path) {
  const h5::File file = h5::File::open(path);
  const h5::Group root = file.root();
  const std::int64_t version = require_format(root, kLogFormat, kLogVersion);
  LogSkeleton skeleton;
  LogHeader& header = skeleton.header;
  header.model = read_model(root, version);
  read_layers(root, header);
  const h5::Group contracts = root.group(kContract);
  header.contracts = {read_contract(contracts, kDecode), read_contract(contracts, kMixed)};
  header.source = root.read_text(kSource);
  read_steps(root, header, version);
  if (version >= 2) read_events(root, header);
  header.taps = read_taps(root);
  header.state = read_policy(root);
  read_checkpoints(root, header);
  header.provenance = read_provenance(root);
  if (version_of(header) != version)
    throw error(root.where(), " @", kVersion, ": expected ", version_of(header), " for what the log holds, found ",
                version);
  skeleton.layout = lay_out(header, path);
  find_data(root, skeleton.layout);
  require_parts(root, header, path);
  require_state(root, header, skeleton.layout);
  require_checkpoints(root, header, skeleton.layout);
  skeleton.file_bytes = file.bytes();
  return skeleton;
}

}  // namespace gdnsim
