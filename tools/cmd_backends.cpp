// gdnsim backends: what can run here, and why the rest cannot; with --approximate, whether this GPU's approximate functions are
// those that contracts are made of.
#include <cstdio>
#include <iostream>
#include <vector>

#include "cli.hpp"
#include "gdnsim/approximate.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim::tools {
namespace {

struct Options {
  BackendOptions backend;
  bool approximate = false;
  OutputOptions output;
};

std::string hex(std::uint32_t bits) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08X", bits);
  return text;
}

std::string in_words(Approximate function, const ApproximateCheck& check) {
  const std::string name(name_of(function)), inputs = std::to_string(check.inputs);
  if (check.differing == 0) return name + ": all " + inputs + " results are the tables'";
  return name + ": " + std::to_string(check.differing) + " of " + inputs +
         " results are not the tables'; the first: input " + hex(check.first_input) + " gives " + hex(check.got) +
         ", the tables say " + hex(check.meant);
}

nlohmann::ordered_json to_json(Approximate function, const ApproximateCheck& check) {
  nlohmann::ordered_json j{
      {"function", name_of(function)}, {"inputs", check.inputs}, {"differing", check.differing}, {"first", nullptr}};
  if (check.differing > 0)
    j["first"] = {{"input", hex(check.first_input)}, {"device", hex(check.got)}, {"tables", hex(check.meant)}};
  return j;
}

/// Every input of every function. True when all are as the contracts mean them.
bool check_device(const Options& options, nlohmann::ordered_json& j) {
  const ApproximateResults of_device = approximate_of_device(options.backend.device);
  Progress progress("inputs", options.output);
  std::uint64_t differing = 0, before = 0;
  for (const Approximate function : kApproximate) {
    const ApproximateCheck check = check_approximate(function, of_device, 0, kAllInputs, [&](std::uint64_t done) {
      progress.update(static_cast<std::int64_t>((before + done) >> 20), std::int64_t{4} << 12);
    });
    before += kAllInputs, differing += check.differing;
    if (!options.output.json_on_stdout()) std::cout << "  " << in_words(function, check) << "\n" << std::flush;
    j["approximate"].push_back(to_json(function, check));
  }
  if (!options.output.json_on_stdout())
    std::cout << (differing == 0
                      ? "  the same tables: contracts made of approximate functions give this GPU's bits\n"
                      : "  this architecture needs tables of its own: contracts made of approximate functions "
                        "do not give this GPU's bits\n");
  return differing == 0;
}

int run(const Options& options) {
  options.output.check_target({});
  nlohmann::ordered_json j{{"schema", "gdnsim.backends/1"}, {"backends", nlohmann::ordered_json::array()}};
  const std::vector<BackendInfo> backends = list_backends(options.backend);
  for (const BackendInfo& info : backends)
    if (options.approximate && info.name == "cuda" && !info.available) throw Error(info.detail);
  for (const BackendInfo& info : backends) {
    if (!options.output.json_on_stdout())
      std::cout << info.name << (info.available ? "  available: " : "  not available: ") << info.detail << "\n";
    j["backends"].push_back({{"name", info.name}, {"available", info.available}, {"detail", info.detail}});
  }
  const bool same = !options.approximate || check_device(options, j);
  options.output.write_json(j);
  return same ? kMatch : kDiverged;
}

}  // namespace

void add_backends(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  CLI::App* command = root.add_subcommand("backends", "what can run here, and why the rest cannot");
  command->footer("Example: gdnsim backends");
  command->add_option("--device", options->backend.device, "which CUDA device")
      ->capture_default_str()
      ->check(CLI::Range(0, 1023));
  command->add_flag("--approximate", options->approximate,
                    "compare every result of the GPU's approximate functions with the tables that the contracts mean; "
                    "exit 1 when one differs");
  options->output.add_to(*command);
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
