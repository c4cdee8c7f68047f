// Reports: what a comparison found, as text for people, as JSON for programs (docs/report.schema.json) and as a page for
// looking (docs/divergence.md).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "gdnsim/compare.hpp"
#include "gdnsim/diff.hpp"
#include "gdnsim/inner.hpp"
#include "gdnsim/mechanism.hpp"
#include "gdnsim/replay.hpp"

namespace gdnsim {

/// A comparison with what a report says around it.
struct Report {
  std::string command;             // "replay", "diff"
  std::vector<std::string> files;  // one, or A and B
  std::string subject;             // one line: what the file holds
  std::string backend;             // and why it was taken; empty for diff
  Verdict verdict = Verdict::inconclusive;
  std::string inconclusive_because;
  ContractChoice contract;  // replay only
  bool has_contract = false;
  Comparison carried, local;          // diff uses `carried` alone
  std::vector<InnerValue> inner;      // inside the step of the first divergence, at its place
  std::optional<LastWriter> writer;   // of what the operation of the first divergence read (explain)
  bool searched = false;              // were mechanisms looked for? (explain)
  std::vector<Mechanism> mechanisms;  // what was found, `unexplained` included
  std::vector<std::string> tried;     // what was re-run in the search
  std::vector<std::string> notes;
  std::string repro;  // the exact command that shows the finding on the smallest slice
  std::string next;   // the next command to try

  const std::optional<Divergence>& first() const { return carried.done ? carried.first : local.first; }
};

Report report_of(const ReplayResult& result);
Report report_of(const DiffResult& result);

/// Text; the last line is the verdict.
void print_text(std::ostream& out, const Report& report);
/// "verdict: match, compared 12345, differing 0"
std::string verdict_line(const Report& report);
nlohmann::ordered_json to_json(const Report& report);
/// One divergence, as the report's `first`.
nlohmann::ordered_json divergence_json(const Divergence& divergence);
/// JSON for people to read too: indented, short lists of numbers on one line, no line break at the end.
std::string json_text(const nlohmann::ordered_json& json);
/// One page that needs nothing else: the report for looking (src/report/page.html).
std::string to_html(const Report& report);

/// Text from a file, fit for a terminal: control characters become '?'.
std::string printable(const std::string& text);
/// Shortest decimal text that reads back as the same word of the type; "nan", "inf", "-inf" otherwise.
std::string value_text(DType type, std::uint32_t word);
/// "0x3f80" or "0x3f800000".
std::string hex_text(DType type, std::uint32_t word);
/// "H 4, HV 8, K 128, V 128, W 4; f32 state, bf16 conv state, bf16 activations"
std::string describe(const Model& model);
/// "steps 3 to 5, layer 1, row 0"; "everywhere" for an empty scope.
std::string scope_text(const Scope& scope);
/// "0-3,5": a list of layers as the command line takes it.
std::string layers_text(const std::vector<int>& layers);

}  // namespace gdnsim
