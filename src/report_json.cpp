// The report as JSON, schema gdnsim.report/1.
#include <cmath>
#include <nlohmann/json.hpp>

#include "gdnsim/report.hpp"

namespace gdnsim {
namespace {

using Json = nlohmann::ordered_json;

/// JSON has no NaN and no infinity; those are strings.
Json number_of(DType type, std::uint32_t word) {
  const double x = value_of(type, word);
  return std::isfinite(x) ? Json(x) : Json(value_text(type, word));
}

Json count_json(const TapCount& count) {
  Json j{{"compared", count.compared},
         {"differing", count.differing},
         {"not_compared", count.not_compared},
         {"max_ulp", count.max_ulp}};
  j["max_abs"] = std::isfinite(count.max_abs) ? Json(count.max_abs) : Json("inf");
  return j;
}

Json taps_json(const Comparison& comparison) {
  Json j = Json::object();
  for (std::size_t i = 0; i < kTaps; ++i)
    if (comparison.counts[i].compared + comparison.counts[i].not_compared > 0)
      j[std::string(name_of(static_cast<Tap>(i)))] = count_json(comparison.counts[i]);
  return j;
}

void set_if(Json& j, const char* key, std::int64_t value) {
  if (value >= 0) j[key] = value;
}

Json divergence_json(const Divergence& d) {
  Json j{{"step", d.step}, {"layer", d.layer}, {"layer_id", d.layer_id}, {"tap", name_of(d.tap)}};
  set_if(j, "row", d.row);
  if (d.row >= 0) j["sequence"] = d.sequence;
  set_if(j, "block", d.block);
  set_if(j, "head", d.head);
  set_if(j, "element", d.element);
  if (d.kind != DiffClass::digest) {
    j["dtype"] = name_of(d.type);
    j["got"] = number_of(d.type, d.got);
    j["want"] = number_of(d.type, d.want);
    j["got_hex"] = hex_text(d.type, d.got);
    j["want_hex"] = hex_text(d.type, d.want);
    j["ulp"] = d.ulp ? Json(*d.ulp) : Json(nullptr);
  }
  j["class"] = name_of(d.kind);
  j["inputs_matched"] = name_of(d.inputs);
  j["from_step"] = d.from_step;
  return j;
}

Json mode_json(const Comparison& comparison) {
  Json j{{"done", comparison.done},
         {"compared", comparison.compared()},
         {"differing", comparison.differing()},
         {"snapshots", comparison.snapshots},
         {"digests_compared", comparison.digests_compared},
         {"digests_differing", comparison.digests_differing}};
  if (!comparison.note.empty()) j["note"] = comparison.note;
  j["first"] = comparison.first ? divergence_json(*comparison.first) : Json(nullptr);
  Json firsts = Json::object();
  for (const auto& first : comparison.firsts)
    if (first) firsts[std::string(name_of(first->tap))] = divergence_json(*first);
  j["first_per_tap"] = firsts;
  return j;
}

Json fields_json(const Contract& contract) {
  Json j = Json::object();
  for (const auto& [field, value] : contract_fields(contract)) j[field] = value;
  return j;
}

Json contract_json(const ContractChoice& choice) {
  const ContractSet& contracts = choice.contracts;
  Json j{{"name", contracts.decode.name}, {"chosen_by", choice.chosen_by}, {"fields", fields_json(contracts.decode)}};
  if (contracts.mixed != contracts.decode)
    j["mixed"] = {{"name", contracts.mixed.name}, {"fields", fields_json(contracts.mixed)}};
  Json tried = Json::array();
  for (const Candidate& c : choice.tried)
    tried.push_back(
        {{"name", c.name}, {"path", name_of(c.path)}, {"compared", c.compared}, {"differing", c.differing}});
  j["tried"] = tried;
  return j;
}

}  // namespace

Report report_of(const ReplayResult& result) {
  Report report;
  report.command = "replay";
  report.verdict = result.verdict;
  report.inconclusive_because = result.inconclusive_because;
  report.contract = result.contract;
  report.has_contract = true;
  report.carried = result.carried;
  report.local = result.local;
  report.notes = result.notes;
  if (result.opaque_steps > 0)
    report.notes.push_back(std::to_string(result.opaque_steps) + " steps are opaque (path 2) and were not replayed");
  return report;
}

Report report_of(const DiffResult& result) {
  Report report;
  report.command = "diff";
  report.verdict = result.verdict;
  report.inconclusive_because = result.inconclusive_because;
  report.carried = result.found;
  report.notes = result.notes;
  return report;
}

Json to_json(const Report& report) {
  Json j{{"schema", "gdnsim.report/1"},
         {"command", report.command},
         {"files", report.files},
         {"subject", report.subject},
         {"verdict", name_of(report.verdict)}};
  if (!report.inconclusive_because.empty()) j["because"] = report.inconclusive_because;
  if (report.has_contract) j["contract"] = contract_json(report.contract);
  if (!report.backend.empty()) j["backend"] = report.backend;
  j["first"] = report.first() ? divergence_json(*report.first()) : Json(nullptr);
  j["taps"] = {{"carried", taps_json(report.carried)}, {"local", taps_json(report.local)}};
  j["modes"] = {{"carried", mode_json(report.carried)}, {"local", mode_json(report.local)}};
  j["mechanisms"] = Json::array();
  j["notes"] = report.notes;
  j["repro"] = report.repro;
  j["next"] = report.next;
  return j;
}

}  // namespace gdnsim
