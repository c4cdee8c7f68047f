#include "pool_checks.hpp"

#include <iostream>

#include "gdnsim/lifecycle.hpp"
#include "gdnsim/poison.hpp"

namespace gdnsim::tools {
namespace {

void print(const std::string& file, const std::vector<std::string>& lines, const OutputOptions& output,
           nlohmann::ordered_json report) {
  if (!output.json_on_stdout()) {
    std::cout << file << "\n";
    for (const std::string& line : lines) std::cout << "  " << line << "\n";
    std::cout << "verdict: diverged, " << std::string(report["class"]) << "\n";
  }
  report["lines"] = lines;
  output.write_json(report);
}

}  // namespace

void PoolChecks::add_to(CLI::App& command) {
  command.add_flag(
      "--poison", poison,
      "first run the steps on a pool of NaNs that name their block: a read of what nothing has written is an "
      "error");
  command
      .add_option("--audit", audit, "rehash the whole pool every N steps: a write to a block nobody named is an error")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 30));
}

bool reports_poison(const Simulation& simulation, const std::string& file, const OutputOptions& output) {
  const auto read = find_poison_read(simulation);
  if (!read) return false;
  Lifecycle life(simulation.stream, file, read->layer);
  life.go_into(read->step);
  const std::vector<std::string> lines = {
      read->text(), "block " + std::to_string(read->block) + " was last written by " + life.last_writer(read->block)};
  nlohmann::ordered_json report{{"schema", "gdnsim.pool/1"},  {"verdict", "diverged"}, {"class", "poison-read"},
                                {"step", read->step},         {"layer", read->layer},  {"row", read->row},
                                {"sequence", read->sequence}, {"block", read->block},  {"poison", read->named()},
                                {"tap", name_of(read->tap)}};
  if (read->poison_modulo > 0) report["poison_modulo"] = read->poison_modulo;
  print(file, lines, output, std::move(report));
  return true;
}

bool reports_strays(const std::vector<StrayWrite>& found, const std::string& file, const OutputOptions& output) {
  if (found.empty()) return false;
  std::vector<std::string> lines;
  for (const StrayWrite& stray : found) lines.push_back(stray.text());
  const StrayWrite& first = found.front();
  print(file, lines, output,
        {{"schema", "gdnsim.pool/1"},
         {"verdict", "diverged"},
         {"class", "stray-write"},
         {"first_step", first.first_step},
         {"last_step", first.last_step},
         {"layer", first.layer},
         {"block", first.block}});
  return true;
}

bool reports_any(const PoolChecks& checks, const Simulation& simulation, const std::string& file,
                 const OutputOptions& output) {
  if (checks.poison && reports_poison(simulation, file, output)) return true;
  if (checks.audit == 0) return false;
  const auto pool = simulation.backend.make_pool(simulation.stream.model(), simulation.layers);
  Nobody nobody;
  AuditObserver audit(simulation, checks.audit, nobody);
  simulate(simulation, *pool, audit);
  return reports_strays(audit.found(), file, output);
}

}  // namespace gdnsim::tools
