// What the batteries found, as a table for people and as JSON for programs (docs/check.schema.json).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "gdnsim/check.hpp"
#include "gdnsim/report.hpp"
#include "gdnsim/version.hpp"
#include "gdnsim/words.hpp"

namespace gdnsim {
namespace {

using Json = nlohmann::ordered_json;

std::string form(const char* text, double value) {
  char out[48];
  std::snprintf(out, sizeof out, text, value);
  return out;
}

/// "12,345,678"
std::string grouped(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string padded(std::string text, std::size_t width, bool right = false) {
  if (text.size() < width) text.insert(right ? 0 : text.size(), width - text.size(), ' ');
  return text;
}

/// The figure that a gate is about.
std::string figure_of(const Gate& gate) {
  if (gate.correctly_rounded)
    return form("%.6f correct", *gate.correctly_rounded) + form(", worst %.4g ulp", *gate.worst_ulp);
  if (gate.seconds)
    return form("%.1f us", 1e6 * *gate.seconds) +
           (gate.of_memory ? form(", %.0f%% of peak", 100 * *gate.of_memory) : "");
  if (gate.compared == 0) return "-";
  return grouped(gate.differing) + " differ, max_abs " + form("%.3g", gate.max_abs);
}

std::string shape_of(const Gate& gate) {
  return gate.kernel.empty() ? gate.shape : "kernel " + gate.kernel + ": " + gate.shape;
}

std::string row_text(const Gate& gate) {
  return padded(std::string(name_of(gate.stage)), 11) + padded(std::string(name_of(gate.battery)), 9) +
         padded(gate.name, 43) + padded(gate.compared > 0 ? grouped(gate.compared) : "-", 15, true) + "  " +
         padded(figure_of(gate), 38) + padded(std::string(name_of(gate.verdict)), 10) + shape_of(gate) +
         (gate.battery == Battery::L1 && gate.compared > 0 && !gate.note.empty() ? "; " + gate.note : "") + "\n";
}

std::string word_text(DType type, std::uint32_t word) {
  return hex_text(type, word) + " (" + value_text(type, word) + ")";
}

std::string violation_text(const Gate& gate) {
  std::ostringstream text;
  text << name_of(gate.verdict) << ": " << name_of(gate.stage) << ", " << name_of(gate.battery) << ", " << gate.name
       << " (" << shape_of(gate) << ")";
  if (gate.verdict == Gate::Verdict::empty) {
    text << ": nothing was compared\n";
    return text.str();
  }
  if (!gate.first) {
    text << ": " << gate.note;
    if (gate.correctly_rounded) text << ", found " << form("%.6f", *gate.correctly_rounded);
    text << "\n";
    return text.str();
  }
  const Violation& v = *gate.first;
  text << ": between " << v.between << ": " << name_of(v.tap) << " of row " << v.row;
  if (v.head >= 0) text << ", head " << v.head;
  text << ", element " << v.element << ": " << word_text(v.type, v.want) << " and " << word_text(v.type, v.got);
  if (const auto ulp = ulp_distance(v.type, v.want, v.got)) text << ", " << *ulp << " ulp";
  text << "\n";
  return text.str();
}

Json violation_json(const Violation& v) {
  const auto place = [](std::int64_t at) { return at < 0 ? Json() : Json(at); };
  const auto ulp = ulp_distance(v.type, v.want, v.got);
  return {{"between", v.between},
          {"tap", name_of(v.tap)},
          {"row", place(v.row)},
          {"head", place(v.head)},
          {"element", place(v.element)},
          {"type", name_of(v.type)},
          {"want", hex_text(v.type, v.want)},
          {"got", hex_text(v.type, v.got)},
          {"ulp", ulp ? Json(*ulp) : Json()}};
}

Json gate_json(const Gate& gate) {
  const auto figure = [](const std::optional<double>& x) { return x && std::isfinite(*x) ? Json(*x) : Json(); };
  return {{"stage", name_of(gate.stage)},
          {"battery", name_of(gate.battery)},
          {"name", gate.name},
          {"shape", gate.shape},
          {"kernel", gate.kernel.empty() ? Json() : Json(gate.kernel)},
          {"verdict", name_of(gate.verdict)},
          {"launches", gate.launches},
          {"compared", gate.compared},
          {"differing", gate.differing},
          {"max_ulp", gate.max_ulp},
          {"max_abs", figure(gate.max_abs)},
          {"correctly_rounded", figure(gate.correctly_rounded)},
          {"worst_ulp", figure(gate.worst_ulp)},
          {"seconds", figure(gate.seconds)},
          {"of_memory", figure(gate.of_memory)},
          {"first", gate.first ? violation_json(*gate.first) : Json()},
          {"note", gate.note}};
}

Json gates_json(const std::vector<Gate>& gates) {
  Json list = Json::array();
  for (const Gate& gate : gates) list.push_back(gate_json(gate));
  return list;
}

/// Kernels all of whose gates were skipped.
std::vector<std::string> unexamined(const std::vector<Gate>& gates) {
  std::vector<std::string> kernels;
  for (const Gate& gate : gates) {
    const bool ran = std::ranges::any_of(gates, [&](const Gate& other) {
      return other.kernel == gate.kernel && other.verdict != Gate::Verdict::skipped;
    });
    if (!gate.kernel.empty() && !ran && std::ranges::find(kernels, gate.kernel) == kernels.end())
      kernels.push_back(gate.kernel);
  }
  return kernels;
}

std::string verdict_word(int exit_code) {
  return exit_code == 0 ? "match" : exit_code == 1 ? "diverged" : "inconclusive";
}

}  // namespace

Json to_json(const CheckReport& report) {
  Json fields = Json::object();
  for (const auto& [field, value] : contract_fields(report.contract)) fields[field] = value;
  return {{"schema", "gdnsim.check/1"},
          {"version", version()},
          {"verdict", verdict_word(report.exit_code())},
          {"backend", report.backend},
          {"description", report.description},
          {"contract", report.contract.name},
          {"fields", fields},
          {"shape", report.shape},
          {"reduced", report.reduced},
          {"compared", report.compared()},
          {"gates", gates_json(report.gates)}};
}

std::string check_text(const CheckReport& report) {
  using Verdict = Gate::Verdict;
  std::string text = report.backend + ": " + report.description + "\ncontract " + report.contract.name + ", shape " +
                     report.shape + (report.reduced ? ", reduced" : "") + "\n\n" + padded("stage", 11) +
                     padded("battery", 9) + padded("gate", 43) + padded("compared", 15, true) + "  " +
                     padded("found", 38) + "verdict   shape\n";
  for (const Gate& gate : report.gates) text += row_text(gate);
  text += "\n";
  for (const Gate& gate : report.gates) {
    if (gate.verdict == Verdict::violated || gate.verdict == Verdict::empty) text += violation_text(gate);
    if (gate.verdict == Verdict::skipped)
      text += "skipped: " + std::string(name_of(gate.stage)) + ", " + std::string(name_of(gate.battery)) + ", " +
              gate.name + (gate.kernel.empty() ? "" : ", kernel " + gate.kernel) + ": " + gate.note + "\n";
  }
  for (const std::string& kernel : unexamined(report.gates))
    text += "kernel " + kernel + ": no step of it was examined\n";
  std::uint64_t differing = 0;
  for (const Gate& gate : report.gates) differing += gate.differing;
  return text + "verdict: " + verdict_word(report.exit_code()) + ", gates held " +
         std::to_string(report.count(Verdict::held)) + ", violated " +
         std::to_string(report.count(Verdict::violated) + report.count(Verdict::empty)) + ", measured " +
         std::to_string(report.count(Verdict::measured)) + ", skipped " +
         std::to_string(report.count(Verdict::skipped)) + ", compared " + std::to_string(report.compared()) +
         ", differing " + std::to_string(differing) + "\n";
}

std::string check_text(const std::vector<MutationResult>& results) {
  std::string text;
  for (const MutationResult& result : results) {
    const Mutation& m = *result.mutation;
    const std::string found = result.caught() ? "caught" : result.asked() ? "MISSED" : "not asked";
    text += padded(found, 11) + padded(std::string(m.name), 15) + std::string(m.what) + "\n";
    const auto violated = std::ranges::find(result.gates, Gate::Verdict::violated, &Gate::verdict);
    if (violated == result.gates.end()) continue;
    text += (result.caught() ? "           " : "           without the fault too: ") + violation_text(*violated);
  }
  const auto caught = std::ranges::count_if(results, &MutationResult::caught);
  const auto asked = std::ranges::count_if(results, &MutationResult::asked);
  return text + "verdict: " + verdict_word(exit_code(results)) + ", planted " + std::to_string(results.size()) +
         ", caught " + std::to_string(caught) + ", not asked " +
         std::to_string(static_cast<std::ptrdiff_t>(results.size()) - asked) + "\n";
}

Json to_json(const std::vector<MutationResult>& results) {
  Json list = Json::array();
  for (const MutationResult& result : results) {
    const Mutation& m = *result.mutation;
    list.push_back({{"name", m.name},
                    {"what", m.what},
                    {"stage", name_of(m.stage)},
                    {"battery", name_of(m.battery)},
                    {"asked", result.asked()},
                    {"caught", result.caught()},
                    {"gates", gates_json(result.gates)}});
  }
  return {{"schema", "gdnsim.check-mutations/1"},
          {"version", version()},
          {"verdict", verdict_word(exit_code(results))},
          {"mutations", list}};
}

Json to_json(const TraceCheck& check, const std::string& path) {
  const RepeatCheck& r = check.repeats;
  Json first;
  if (r.first) {
    const auto place = [](const RepeatPlace& p) -> Json {
      return {{"step", p.step}, {"row", p.row}, {"block", p.block}};
    };
    first = violation_json({"", r.first->tap, r.first->second.row, r.first->head, r.first->element, r.first->type,
                            r.first->first_word, r.first->second_word});
    first["between"] = r.first->same_batch ? "the same launch again" : "different launches";
    first["layer"] = r.first->layer;
    first["places"] = {place(r.first->first), place(r.first->second)};
  }
  return {{"schema", "gdnsim.check-trace/1"},
          {"version", version()},
          {"verdict", verdict_word(check.exit_code())},
          {"file", path},
          {"repeats", r.repeats},
          {"same_launch", r.same_batch},
          {"other_launch", check.in_other_batches()},
          {"other_z", r.other_z},
          {"snapshots", r.snapshots},
          {"compared", r.compared},
          {"differing", r.differing},
          {"forgotten", r.forgotten},
          {"first", first}};
}

std::string check_text(const TraceCheck& check, const std::string& path) {
  const RepeatCheck& r = check.repeats;
  std::ostringstream text;
  text << path << "\nL0: " << r.same_batch
       << " rows were given the same again, in the same launch\nL1: " << check.in_other_batches()
       << " rows were given the same again, in another launch: other rows around them, another "
       << "place, another number of rows or tokens, or a mixed step whose tokens are not known\n";
  if (r.other_z > 0) text << r.other_z << " of those had another z: all but the norm was compared\n";
  if (r.snapshots > 0) text << r.snapshots << " states recorded after both were compared as well\n";
  if (r.forgotten > 0) text << "some repeats may not have been found: " << r.forgotten << " rows left the window\n";
  if (r.repeats == 0)
    text << "no row was given twice what another was given: the same inputs and the same history since its block was "
         << "loaded or zeroed. To ask this of an engine, record one sequence in two batches\n";
  if (r.first) {
    const Repeat& f = *r.first;
    text << (f.same_batch ? "L0 violated" : "L1 violated") << ": layer " << f.layer << ", step " << f.first.step
         << " row " << f.first.row << " block " << f.first.block << " and step " << f.second.step << " row "
         << f.second.row << " block " << f.second.block << ": " << name_of(f.tap);
    if (f.head >= 0) text << ", head " << f.head;
    text << ", element " << f.element << ": " << word_text(f.type, f.first_word) << " and "
         << word_text(f.type, f.second_word);
    if (const auto ulp = ulp_distance(f.type, f.first_word, f.second_word)) text << ", " << *ulp << " ulp";
    text << "\n";
  }
  text << "verdict: " << verdict_word(check.exit_code()) << ", compared " << r.compared << ", differing " << r.differing
       << "\n";
  return text.str();
}

}  // namespace gdnsim
