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

/// [i]: how many distances from 2^i to 2^(i+1) - 1; nothing after the last that is not 0.
Json histogram_json(const TapCount& count) {
  std::size_t used = kUlpBuckets;
  while (used > 0 && count.ulps[used - 1] == 0) --used;
  Json j = Json::array();
  for (std::size_t i = 0; i < used; ++i) j.push_back(count.ulps[i]);
  return j;
}

Json count_json(const TapCount& count) {
  Json j{{"compared", count.compared},
         {"differing", count.differing},
         {"not_compared", count.not_compared},
         {"max_ulp", count.max_ulp}};
  j["max_abs"] = std::isfinite(count.max_abs) ? Json(count.max_abs) : Json("inf");
  j["ulp_histogram"] = histogram_json(count);
  Json classes = Json::object();
  for (std::size_t i = 0; i < kDiffClasses; ++i)
    if (count.classes[i] > 0) classes[std::string(name_of(static_cast<DiffClass>(i)))] = count.classes[i];
  j["classes"] = classes;
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

Json event_json(const EventPlace& place) {
  Json j{{"number", place.number}, {"kind", name_of(place.event.kind)}, {"when", place.after ? "after" : "before"}};
  if (place.event.kind == EventKind::copy) j["source"] = place.event.source;
  set_if(j, "sequence", place.event.sequence);
  return j;
}

Json near_json(const Divergence& d) {
  Json got = Json::array(), want = Json::array();
  for (std::uint32_t word : d.near.got) got.push_back(hex_text(d.type, word));
  for (std::uint32_t word : d.near.want) want.push_back(hex_text(d.type, word));
  return {{"from", d.near.from}, {"got", got}, {"want", want}};
}

}  // namespace

Json divergence_json(const Divergence& d) {
  Json j{{"step", d.step}, {"layer", d.layer}, {"layer_id", d.layer_id}, {"tap", name_of(d.tap)}};
  set_if(j, "row", d.row);
  if (d.row >= 0) j["sequence"] = d.sequence;
  set_if(j, "block", d.block);
  set_if(j, "head", d.head);
  set_if(j, "element", d.element);
  if (d.event) j["event"] = event_json(*d.event);
  if (d.kind != DiffClass::digest) {
    j["dtype"] = name_of(d.type);
    j["got"] = number_of(d.type, d.got);
    j["want"] = number_of(d.type, d.want);
    j["got_hex"] = hex_text(d.type, d.got);
    j["want_hex"] = hex_text(d.type, d.want);
    j["ulp"] = d.ulp ? Json(*d.ulp) : Json(nullptr);
    j["near"] = near_json(d);
  }
  j["class"] = name_of(d.kind);
  j["inputs_matched"] = name_of(d.inputs);
  j["from_step"] = d.from_step;
  return j;
}

namespace {

Json inner_json(const std::vector<InnerValue>& inner) {
  Json all = Json::array();
  for (const InnerValue& value : inner) {
    Json j{{"name", value.name}};
    set_if(j, "head", value.head);
    set_if(j, "element", value.element);
    if (value.word) {
      j["dtype"] = name_of(value.type);
      j["value"] = number_of(value.type, *value.word);
      j["hex"] = hex_text(value.type, *value.word);
    } else {
      j["value"] = std::isfinite(value.value) ? Json(value.value) : Json("nan");
    }
    if (value.recorded) j["recorded_hex"] = hex_text(value.type, *value.recorded);
    all.push_back(j);
  }
  return all;
}

Json writer_json(const LastWriter& writer) {
  Json j{{"block", writer.block}};
  set_if(j, "step", writer.step);
  set_if(j, "event", writer.event);
  set_if(j, "row", writer.row);
  set_if(j, "sequence", writer.sequence);
  j["says"] = writer.says;
  return j;
}

/// What was compared in each cell of a layer, as [count, how many cells in a row have it].
Json compared_json(const CellRow& row) {
  Json runs = Json::array();
  for (std::size_t i = 0; i < row.cells().size();) {
    std::size_t end = i + 1;
    while (end < row.cells().size() && row.cells()[end].compared == row.cells()[i].compared) ++end;
    runs.push_back(Json::array({row.cells()[i].compared, end - i}));
    i = end;
  }
  return runs;
}

/// The cells that differ: [layer, first step, differing, max_ulp, {tap: differing}].
void add_differing(Json& all, const CellRow& row) {
  for (std::size_t i = 0; i < row.cells().size(); ++i) {
    const Cell& cell = row.cells()[i];
    if (cell.differing == 0) continue;
    Json taps = Json::object();
    for (std::size_t t = 0; t < kTaps; ++t)
      if (cell.taps[t] > 0) taps[std::string(name_of(static_cast<Tap>(t)))] = cell.taps[t];
    const std::int64_t step = row.first_step() + static_cast<std::int64_t>(i) * row.steps_per_cell();
    all.push_back(Json::array({row.layer(), step, cell.differing, cell.max_ulp, taps}));
  }
}

Json cells_json(const Comparison& comparison) {
  Json layers = Json::array(), differing = Json::array();
  for (const CellRow& row : comparison.cells) {
    layers.push_back({{"layer", row.layer()},
                      {"layer_id", row.layer_id()},
                      {"first_step", row.first_step()},
                      {"steps_per_cell", row.steps_per_cell()},
                      {"compared", compared_json(row)}});
    add_differing(differing, row);
  }
  return {{"layers", layers}, {"differing", differing}};
}

Json scope_json(const Scope& scope) {
  Json j = Json::object();
  set_if(j, "from_step", scope.from_step);
  set_if(j, "to_step", scope.to_step);
  set_if(j, "layer", scope.layer);
  set_if(j, "row", scope.row);
  set_if(j, "block", scope.block);
  set_if(j, "head", scope.head);
  return j;
}

Json mechanisms_json(const std::vector<Mechanism>& mechanisms) {
  Json all = Json::array();
  for (const Mechanism& m : mechanisms)
    all.push_back({{"id", m.id},
                   {"scope", scope_json(m.scope)},
                   {"says", m.says},
                   {"evidence", m.evidence},
                   {"proof", name_of(m.proof)}});
  return all;
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
  j["cells"] = cells_json(comparison);
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
  if (report.first() && !report.inner.empty()) j["first"]["inner"] = inner_json(report.inner);
  if (report.first() && report.writer) j["first"]["last_writer"] = writer_json(*report.writer);
  j["taps"] = {{"carried", taps_json(report.carried)}, {"local", taps_json(report.local)}};
  j["modes"] = {{"carried", mode_json(report.carried)}, {"local", mode_json(report.local)}};
  j["searched"] = report.searched;
  j["mechanisms"] = mechanisms_json(report.mechanisms);
  j["tried"] = report.tried;
  j["notes"] = report.notes;
  j["repro"] = report.repro;
  j["next"] = report.next;
  return j;
}

}  // namespace gdnsim
