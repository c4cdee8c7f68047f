// gdnsim info: what a file holds.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <set>

#include "cli.hpp"
#include "gdnsim/block_history.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/pack.hpp"

namespace gdnsim::tools {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string file;
  bool history = false;
  SliceOptions slice;
  OutputOptions output;
};

Json model_json(const Model& m) {
  Json j{{"num_k_heads", m.H},
         {"num_v_heads", m.HV},
         {"head_k_dim", m.K},
         {"head_v_dim", m.V},
         {"conv_width", m.W},
         {"scale", m.scale},
         {"activation", name_of(m.activation)},
         {"use_qk_l2norm", m.use_qk_l2norm},
         {"state_dtype", name_of(m.state_dtype)},
         {"conv_state_dtype", name_of(m.conv_state_dtype)},
         {"act_dtype", name_of(m.act_dtype)},
         {"sentinel", name_of(m.sentinel)},
         {"num_blocks", m.num_blocks}};
  if (m.norm_eps) j["norm_eps"] = *m.norm_eps, j["norm_gate"] = name_of(m.norm_gate);
  j["inactive_conv_out"] = name_of(m.inactive_conv_out);
  j["inactive_core_out"] = name_of(m.inactive_core_out);
  j["layer_ids"] = m.layer_ids;
  if (m.block_stride != 0) j["block_stride"] = m.block_stride;
  if (m.conv_block_stride != 0) j["conv_block_stride"] = m.conv_block_stride;
  if (m.index_bits != 64) j["index_bits"] = m.index_bits;
  return j;
}

Json taps_json(const Recording& recording) {
  Json j = Json::array();
  TapSet any;
  for (int layer : recording.layers())
    for (std::size_t i = 0; i < kTaps; ++i)
      if (recording.taps(layer).has(static_cast<Tap>(i))) any.add(static_cast<Tap>(i));
  for (std::size_t i = 0; i < kTaps; ++i)
    if (any.has(static_cast<Tap>(i))) j.push_back(name_of(static_cast<Tap>(i)));
  return j;
}

/// Is an event one of the slice's? Of picked rows: when it changes a block that they need.
bool selects(const Slice& slice, const std::vector<std::int32_t>& needed, const Event& event) {
  const bool layer = event.layer < 0 || std::ranges::binary_search(slice.layers, event.layer);
  const bool block = slice.pick.all() || std::ranges::binary_search(needed, event.block);
  return layer && block && event.step >= slice.first_step && event.step < slice.last_step;
}

std::int64_t count_active(const StepPlan& plan, const Pick& pick) {
  const std::vector<int> rows = pick.rows_of(plan);
  return std::ranges::count_if(rows, [&](int row) { return plan.block[static_cast<std::size_t>(row)] >= 0; });
}

Json stream_json(const Stream& stream, const Slice& slice) {
  std::map<std::string, std::int64_t> events, paths;
  const std::vector<std::int32_t> needed = needed_blocks(stream, slice);
  for (const Event& event : stream.events())
    if (selects(slice, needed, event)) ++events[std::string(name_of(event.kind))];
  std::int64_t active = 0;
  for (std::int64_t step = slice.first_step; step < slice.last_step; ++step) {
    const StepPlan plan = stream.plan(step);
    ++paths[std::string(name_of(plan.path))];
    active += count_active(plan, slice.pick);
  }
  return {{"steps", slice.last_step - slice.first_step},
          {"rows", stream.rows()},
          {"active_rows", active},
          {"paths", paths},
          {"events", events}};
}

using PlanOf = std::function<StepPlan(std::int64_t)>;
PlanOf plans_of(Input& input) {
  if (input.log) return [&log = *input.log](std::int64_t step) { return log.plan(step); };
  return [&stream = input.stream()](std::int64_t step) { return stream.plan(step); };
}

/// Launches of several tokens by how many they verify, and accept counts by how often each was said; nothing where there are none.
void add_launches(Json& j, const Slice& slice, const PlanOf& plan_of) {
  std::map<int, std::int64_t> launches;
  std::map<std::int32_t, std::int64_t> accepted;
  std::int64_t moved = 0;
  for (std::int64_t step = slice.first_step; step < slice.last_step; ++step) {
    const StepPlan plan = plan_of(step);
    if (plan.last_draft) ++launches[plan.draft + 1];
    for (std::size_t row = 0; row < plan.block.size(); ++row) {
      if (!slice.pick.row(plan, static_cast<int>(row)) || plan.block[row] < 0) continue;
      moved += plan.start(row) != plan.block[row];
      if (!plan.accepted.empty() && plan.accepted[row] > 0) ++accepted[plan.accepted[row]];
    }
  }
  const bool several = !launches.empty() && launches.rbegin()->first > 1;
  if (!several && moved == 0 && accepted.empty()) return;
  Json by_drafts = Json::object(), by_accepted = Json::object();
  for (const auto& [drafts, count] : launches) by_drafts[std::to_string(drafts)] = count;
  for (const auto& [count, times] : accepted) by_accepted[std::to_string(count)] = times;
  j["launches"] = {{"by_drafts", by_drafts}, {"by_accepted", by_accepted}, {"rows_from_another_block", moved}};
}

Json event_json(std::span<const Event> events, std::int64_t number) {
  const Event& event = events[static_cast<std::size_t>(number)];
  Json j{{"event", number}, {"step", event.step}, {"kind", name_of(event.kind)}};
  if (event.kind == EventKind::copy) j["source"] = event.source;
  if (event.layer >= 0) j["layer"] = event.layer;
  if (event.why != EventWhy::none) j["why"] = name_of(event.why);
  return j;
}

Json tenure_json(const Tenure& t, std::span<const Event> events) {
  Json j{{"block", t.block}, {"sequence", t.sequence}, {"steps", {t.first_step, t.last_step}}, {"rows", t.rows}};
  if (t.rows > 0) j["row_steps"] = {t.first_row, t.last_row};
  if (t.began >= 0) j["began"] = event_json(events, t.began);
  j["filled"] = Json::array();
  for (std::int64_t fill : t.fills) j["filled"].push_back(event_json(events, fill));
  if (t.ended >= 0) j["ended"] = event_json(events, t.ended);
  j["says"] = describe(t, events);
  return j;
}

/// A log has its own steps and events; the others are streams.
Json blocks_json(Input& input, const Slice& slice) {
  const PlanOf plan_of = plans_of(input);
  std::set<std::int32_t> picked;
  for (std::int64_t step = slice.first_step; step < slice.last_step; ++step) {
    const StepPlan plan = plan_of(step);
    for (int row : slice.pick.rows_of(plan)) picked.insert(plan.block[static_cast<std::size_t>(row)]);
  }
  const std::span<const Event> events = input.log ? input.log->header().events : input.stream().events();
  const Slice whole = input.log ? whole_of(*input.log) : whole_of(input.stream());
  Json all = Json::array();
  for (const Tenure& t : block_history(events, whole.first_step, whole.last_step, plan_of)) {
    const bool block = slice.pick.all() || picked.contains(t.block) ||
                       (slice.pick.rows.empty() && std::ranges::binary_search(slice.pick.blocks, t.block));
    if (block && t.last_step >= slice.first_step && t.first_step < slice.last_step)
      all.push_back(tenure_json(t, events));
  }
  return all;
}

Json provenance_json(const std::vector<std::pair<std::string, std::string>>& provenance) {
  Json j = Json::object();
  for (const auto& [name, value] : provenance) j[name] = value;
  return j;
}

Json describe_log(Log& log) {
  const LogHeader& h = log.header();
  Json j{{"first_step", h.first_step},
         {"steps", log.steps()},
         {"declared_steps", h.steps},
         {"rows", h.rows},
         {"layers", h.layers},
         {"contract", h.contracts.decode.name},
         {"contract_mixed", h.contracts.mixed.name}};
  j["state"] = h.state.kind == StatePolicy::Kind::full     ? "full"
               : h.state.kind == StatePolicy::Kind::digest ? "digest"
                                                           : "every:" + std::to_string(h.state.n);
  if (h.checkpoint_every > 0) j["checkpoint"] = "every:" + std::to_string(h.checkpoint_every);
  j["source"] = h.source;
  return j;
}

Json slice_json(const Slice& slice) {
  Json j{{"layers", slice.layers}, {"steps", {slice.first_step, slice.last_step}}};
  if (!slice.pick.rows.empty()) j["rows"] = slice.pick.rows;
  if (!slice.pick.blocks.empty()) j["blocks"] = slice.pick.blocks;
  return j;
}

std::int64_t count_snapshots(const Recording& recording, const Slice& slice) {
  return std::ranges::count_if(recording.snapshots(), [&](const Snapshot& s) {
    return s.step >= slice.first_step && s.step < slice.last_step &&
           std::ranges::binary_search(slice.layers, s.layer) &&
           (slice.pick.all() || slice.pick.state(recording.plan(s.step), s.block));
  });
}

/// A log of no complete step has a whole, but no slice.
Slice slice_of(Input& input, const Slice& asked) {
  if (input.log && asked.whole()) return whole_of(*input.log);
  const Slice whole = input.log ? whole_of(*input.log) : whole_of(input.stream());
  const Model& model = input.log ? input.log->model() : input.stream().model();
  const Slice slice = resolved(asked, whole, input.path);
  require_picked(slice.pick, model, input.log ? input.log->rows() : input.stream().rows(), input.path);
  return slice;
}

void add_warnings(Json& j, const Model& model, Trace* trace = nullptr) {
  std::vector<std::string> warnings = offset_warnings(model);
  if (trace)
    for (std::string& line : trace_warnings(*trace)) warnings.push_back(std::move(line));
  if (!warnings.empty()) j["warnings"] = warnings;
}

Json look(Input& input, const Slice& asked) {
  constexpr const char* kinds[] = {"trace", "log", "recipe"};
  Json j{{"schema", "gdnsim.info/1"}, {"file", input.path}, {"kind", kinds[static_cast<int>(input.kind)]}};
  const Slice slice = slice_of(input, asked);
  if (!asked.whole()) j["slice"] = slice_json(slice);
  if (input.log) {
    j["model"] = model_json(input.log->model());
    j["log"] = describe_log(*input.log);
    j["taps"] = taps_json(*input.log);
    j["snapshots"] = count_snapshots(*input.log, slice);
    add_launches(j["log"], slice, plans_of(input));
    add_warnings(j, input.log->model());
    j["provenance"] = provenance_json(input.log->header().provenance);
    return j;
  }
  j["model"] = model_json(input.stream().model());
  j["stream"] = stream_json(input.stream(), slice);
  add_launches(j["stream"], slice, plans_of(input));
  add_warnings(j, input.stream().model(), input.trace.get());
  if (input.trace) {
    if (!input.trace->layout().empty()) j["layout"] = provenance_json(input.trace->layout());
    j["taps"] = taps_json(*input.trace);
    j["snapshots"] = count_snapshots(*input.trace, slice);
    j["provenance"] = provenance_json(input.trace->provenance());
  }
  return j;
}

/// The preset that a contract has the most fields of, and how many are others.
struct Nearest {
  const Contract* preset = nullptr;
  std::size_t differ = 0;
  std::string words() const {
    if (differ == 0) return preset->name;
    return "custom, " + std::to_string(differ) + (differ == 1 ? " field differs from " : " fields differ from ") +
           preset->name;
  }
};

Nearest nearest_to(const Contract& contract) {
  Nearest nearest;
  const auto ours = contract_fields(contract);
  for (const Contract& preset : contract_presets()) {
    const auto theirs = contract_fields(preset);
    std::size_t differ = 0;
    for (std::size_t i = 0; i < ours.size(); ++i) differ += ours[i] != theirs[i];
    if (nearest.preset == nullptr || differ < nearest.differ) nearest = {&preset, differ};
  }
  return nearest;
}

/// Contracts that do the same, whatever their names.
bool alike(const Contract& a, const Contract& b) { return contract_fields(a) == contract_fields(b); }

/// A bundle's contract in a line: its text has one for each of some fifty fields. As it is where it cannot be read.
/// One name says both paths: a preset's pair, or the same contract twice. "triton-sm90" alone is its pair, never itself twice.
std::string bundled_words(const std::string& text) {
  try {
    const ContractSet set = contracts_from_text(text, kBundleContract);
    const Nearest decode = nearest_to(set.decode);
    const ContractSet named = contract_set(decode.preset->name);
    const bool pair = alike(set.decode, named.decode) && alike(set.mixed, named.mixed);
    const bool twice = alike(set.decode, set.mixed) && alike(named.decode, named.mixed);
    return pair || twice ? decode.words() : decode.words() + "; mixed steps: " + nearest_to(set.mixed).words();
  } catch (const Error&) {
    return text;
  }
}

/// The same facts for people: one `key value` line each, groups indented.
void print(std::ostream& out, const Json& j, const std::string& indent) {
  for (const auto& [key, value] : j.items()) {
    if (key == "schema") continue;
    out << indent << printable(key);
    if (value.is_object()) {
      out << "\n";
      print(out, value, indent + "  ");
    } else if (key == "history" || key == "warnings") {
      out << "\n";
      for (const Json& line : value)
        out << indent << "  " << printable(line.is_string() ? line.get<std::string>() : line["says"].get<std::string>())
            << "\n";
    } else if (key == kBundleContract && value.is_string()) {
      out << "  " << printable(bundled_words(value.get<std::string>())) << "\n";
    } else {
      out << "  " << printable(value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
    }
  }
}

int run(const Options& options) {
  options.output.check_target({options.file});
  Input input = open_input(options.file);
  Json j = look(input, options.slice.parsed());
  if (options.history) j["history"] = blocks_json(input, slice_of(input, options.slice.parsed()));
  if (!options.output.json_on_stdout()) print(std::cout, j, "");
  options.output.write_json(j);
  return kMatch;
}

}  // namespace

void add_info(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  CLI::App* command = root.add_subcommand("info", "what a trace, log or recipe holds");
  command->footer("Example: gdnsim info traces/h200_k64_3layers.h5");
  command->add_option("FILE", options->file, "a trace, log or recipe")->required();
  command->add_flag("--history", options->history, "who held each block, from when to when, by which events");
  options->slice.add_to(*command);
  options->output.add_to(*command);
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
