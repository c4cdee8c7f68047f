// gdnsim backends: what can run here, and why the rest cannot.
#include <iostream>

#include "cli.hpp"

namespace gdnsim::tools {
namespace {

struct Options {
  BackendOptions backend;
  OutputOptions output;
};

int run(const Options& options) {
  options.output.check_target({});
  nlohmann::ordered_json j{{"schema", "gdnsim.backends/1"}, {"backends", nlohmann::ordered_json::array()}};
  for (const BackendInfo& info : list_backends(options.backend)) {
    if (!options.output.json_on_stdout())
      std::cout << info.name << (info.available ? "  available: " : "  not available: ") << info.detail << "\n";
    j["backends"].push_back({{"name", info.name}, {"available", info.available}, {"detail", info.detail}});
  }
  options.output.write_json(j);
  return kMatch;
}

}  // namespace

void add_backends(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  CLI::App* command = root.add_subcommand("backends", "what can run here, and why the rest cannot");
  command->footer("Example: gdnsim backends");
  command->add_option("--device", options->backend.device, "which CUDA device")
      ->capture_default_str()
      ->check(CLI::Range(0, 1023));
  options->output.add_to(*command);
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
