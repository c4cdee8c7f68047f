// gdnsim info: what a file holds.
#include <iostream>
#include <map>

#include "cli.hpp"

namespace gdnsim::tools {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string file;
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

Json stream_json(const Stream& stream) {
  std::map<std::string, std::int64_t> events, paths;
  for (const Event& event : stream.events()) ++events[std::string(name_of(event.kind))];
  std::int64_t active = 0;
  for (std::int64_t step = 0; step < stream.steps(); ++step) {
    const StepPlan plan = stream.plan(step);
    ++paths[std::string(name_of(plan.path))];
    for (std::int32_t block : plan.block) active += block >= 0;
  }
  return {{"steps", stream.steps()},
          {"rows", stream.rows()},
          {"active_rows", active},
          {"paths", paths},
          {"events", events}};
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

Json look(Input& input) {
  constexpr const char* kinds[] = {"trace", "log", "recipe"};
  Json j{{"schema", "gdnsim.info/1"}, {"file", input.path}, {"kind", kinds[static_cast<int>(input.kind)]}};
  if (input.log) {
    j["model"] = model_json(input.log->model());
    j["log"] = describe_log(*input.log);
    j["taps"] = taps_json(*input.log);
    j["snapshots"] = input.log->snapshots().size();
    j["provenance"] = provenance_json(input.log->header().provenance);
    return j;
  }
  j["model"] = model_json(input.stream().model());
  j["stream"] = stream_json(input.stream());
  if (input.trace) {
    j["taps"] = taps_json(*input.trace);
    j["snapshots"] = input.trace->snapshots().size();
    j["provenance"] = provenance_json(input.trace->provenance());
  }
  return j;
}

/// The same facts for people: one `key value` line each, groups indented.
void print(std::ostream& out, const Json& j, const std::string& indent) {
  for (const auto& [key, value] : j.items()) {
    if (key == "schema") continue;
    out << indent << printable(key);
    if (value.is_object()) {
      out << "\n";
      print(out, value, indent + "  ");
    } else {
      out << "  " << printable(value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
    }
  }
}

int run(const Options& options) {
  options.output.check_target({options.file});
  Input input = open_input(options.file);
  const Json j = look(input);
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
  options->output.add_to(*command);
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
