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

/// Why a row is padding.
std::string padding_words(const StepPlan& plan, int row) {
  const std::string words = "row " + std::to_string(row) + " of step " + std::to_string(plan.step);
  if (row >= plan.present) return words + " is beyond the " + std::to_string(plan.present) + " rows present";
  return words + " is inactive: its index is " + std::to_string(plan.index[static_cast<std::size_t>(row)]);
}

/// Who filled the block that the row goes on from, or should have; or why the row is padding.
std::string more_about(const PoisonRead& read, const Stream& stream, const std::string& file) {
  if (read.padding >= 0) return padding_words(stream.plan(read.padding_step), read.padding);
  if (read.block < 0) return padding_words(stream.plan(read.step), read.row);
  Lifecycle life(stream, file, read.layer);
  life.go_into(read.step);
  const BlockLife& block = life.life(read.block);
  const bool own = read.poison == read.block && read.poison_modulo == 0;                  // and no copy of another's
  const bool lost = own && block.written_step >= 0 && block.written_step >= block.since;  // since its allocation
  return "block " + std::to_string(read.block) + " was last written by " + life.last_writer(read.block) +
         (lost ? ", which did not reach it" : "");
}

}  // namespace

void PoolChecks::add_to(CLI::App& command) {
  command.add_flag(
      "--poison", poison,
      "first run the steps on a pool of NaNs that name their block, with padding poisoned too: a read of what nothing "
      "has written is an error");
  command
      .add_option("--audit", audit, "rehash the whole pool every N steps: a write to a block nobody named is an error")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 30));
}

bool reports_poison(const Simulation& simulation, const std::string& file, const OutputOptions& output,
                    const RunSteps& run) {
  const auto read = find_poison_read(simulation, run);
  if (!read) return false;
  nlohmann::ordered_json report{{"schema", "gdnsim.pool/1"},  {"verdict", "diverged"}, {"class", "poison-read"},
                                {"step", read->step},         {"layer", read->layer},  {"row", read->row},
                                {"sequence", read->sequence}, {"block", read->block},  {"poison", read->named()},
                                {"tap", name_of(read->tap)}};
  if (read->poison_modulo > 0) report["poison_modulo"] = read->poison_modulo;
  if (read->padding >= 0) report["padding"] = {{"step", read->padding_step}, {"row", read->padding}};
  print(file, {read->text(), more_about(*read, simulation.stream, file)}, output, std::move(report));
  return true;
}

bool reports_strays(const std::vector<StrayWrite>& found, const std::string& file, const OutputOptions& output) {
  if (found.empty()) return false;
  std::vector<std::string> lines;
  for (const StrayWrite& stray : found) lines.push_back(stray.text());
  const StrayWrite& first = found.front();
  nlohmann::ordered_json report{{"schema", "gdnsim.pool/1"},    {"verdict", "diverged"},
                                {"class", "stray-write"},       {"first_step", first.first_step},
                                {"last_step", first.last_step}, {"layer", first.layer},
                                {"block", first.block}};
  if (first.writer != Writer::nobody)
    report["writer"] = {{"kind", name_of(first.writer)}, {"step", first.step}, {"row", first.row}};
  print(file, lines, output, std::move(report));
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
