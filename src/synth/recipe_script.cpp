// A recipe's script and faults: JSON to their structs and back. Keys that keep their default are not printed.
#include <algorithm>

#include "gdnsim/error.hpp"
#include "synth/recipe_parts.hpp"

namespace gdnsim {
namespace {

constexpr std::int32_t kMostSequence = (1 << 30) - 1;
constexpr std::string_view kKinds[] = {"zero", "load", "copy", "free", "allocate"};
constexpr std::string_view kWhys[] = {"none", "start", "fork", "evict", "resume", "finish"};
constexpr std::string_view kFaults[] = {"inactive-row", "missing-write", "missing-event", "read-block",  "write-block",
                                        "old-copy",     "window",        "transposed",    "rounded",     "poisoned",
                                        "poison-out",   "wrapped",       "interleaved",   "read-inputs", "contract"};
constexpr std::string_view kParts[] = {"both", "recurrent", "conv"};

/// A reader for each object of an array.
std::vector<JsonReader> objects(const Json& array, const std::string& where, const std::string& path) {
  if (!array.is_array())
    throw error(where, ": ", path, ": expected an array of objects, found ", array.dump().substr(0, 40));
  std::vector<JsonReader> readers;
  for (std::size_t i = 0; i < array.size(); ++i)
    readers.emplace_back(array[i], where, path + "[" + std::to_string(i) + "]");
  return readers;
}

/// index[row] = table[row][column[row]]: how an engine with block tables finds it.
std::vector<std::int32_t> read_table(JsonReader& reader) {
  const Json& table = reader.at("table");
  const auto columns = reader.require("column").integers("column", INT32_MIN, INT32_MAX);
  if (!table.is_array() || table.size() != columns.size())
    reader.refuse(reader.path_of("table"), "an array of " + std::to_string(columns.size()) + " rows", table);
  std::vector<std::int32_t> index;
  for (std::size_t row = 0; row < columns.size(); ++row) {
    const std::string name = reader.path_of("column") + "[" + std::to_string(row) + "]";
    const std::int32_t column = columns[row];
    if (!table[row].is_array() || table[row].empty())
      reader.refuse(reader.path_of("table"), "an array of blocks for each row", table);
    if (column < 0 || static_cast<std::size_t>(column) >= table[row].size())
      reader.refuse(name, "a column in 0.." + std::to_string(table[row].size() - 1) + " for row " + std::to_string(row),
                    column);
    const Json& block = table[row][static_cast<std::size_t>(column)];
    const bool integer =
        block.is_number_integer() && !(block.is_number_unsigned() && block.get<std::uint64_t>() > INT32_MAX);
    const std::int64_t value = integer ? block.get<std::int64_t>() : 0;
    if (!integer || value < INT32_MIN || value > INT32_MAX)
      reader.refuse(reader.path_of("table"), "blocks, which have 32 bits", block);
    index.push_back(static_cast<std::int32_t>(value));
  }
  return index;
}

struct Repeated {
  ScriptStep step;
  int times = 1;
};

Repeated read_step(JsonReader& reader) {
  Repeated read;
  ScriptStep& step = read.step;
  if (reader.has("table"))
    step.index = read_table(reader);
  else
    step.index = reader.require("index").integers("index", INT32_MIN, INT32_MAX);
  if (reader.has("sequence"))
    for (std::int32_t sequence : reader.integers("sequence", -1, kMostSequence)) step.sequence.push_back(sequence);
  int path = 0;
  reader.integer("path", 0, 2, path);
  step.path = static_cast<Path>(path);
  reader.integer("rows", 0, 1 << 13, step.present);
  reader.integer("draft", 0, 63, step.draft);
  reader.flag("last_draft", step.last_draft);
  if (reader.has("source")) step.source = reader.integers("source", INT32_MIN, INT32_MAX);
  if (reader.has("accepted")) step.accepted = reader.integers("accepted", INT32_MIN, INT32_MAX);
  reader.integer("times", 1, 1 << 16, read.times);
  reader.done();
  return read;
}

Json print(const ScriptStep& step) {
  Json json = {{"index", step.index}};
  if (!step.sequence.empty()) json["sequence"] = step.sequence;
  if (step.path != Path::decode) json["path"] = static_cast<int>(step.path);
  if (step.present >= 0) json["rows"] = step.present;
  if (step.draft > 0) json["draft"] = step.draft;
  if (!step.last_draft) json["last_draft"] = false;
  if (!step.source.empty()) json["source"] = step.source;
  if (!step.accepted.empty()) json["accepted"] = step.accepted;
  return json;
}

ScriptEvent read_event(JsonReader& reader) {
  ScriptEvent line;
  Event& event = line.event;
  reader.require("step").require("kind").require("block");
  reader.integer("step", 0, INT32_MAX, event.step);
  reader.integer("layer", -1, (1 << 16) - 1, event.layer);
  reader.integer("block", INT32_MIN, INT32_MAX, event.block);
  reader.word("kind", kKinds, event.kind);
  if (event.kind == EventKind::copy) reader.require("source").integer("source", INT32_MIN, INT32_MAX, event.source);
  reader.integer("sequence", -1, kMostSequence, event.sequence);
  reader.word("why", kWhys, event.why);
  if (event.kind == EventKind::load) reader.integer("resumed", 0, 1 << 30, line.resumed);
  reader.done();
  return line;
}

Json print(const ScriptEvent& line) {
  const Event& event = line.event;
  Json json = {{"step", event.step}, {"kind", word_of(kKinds, event.kind)}, {"block", event.block}};
  if (event.layer >= 0) json["layer"] = event.layer;
  if (event.kind == EventKind::copy) json["source"] = event.source;
  if (event.sequence >= 0) json["sequence"] = event.sequence;
  if (event.why != EventWhy::none) json["why"] = word_of(kWhys, event.why);
  if (line.resumed > 0) json["resumed"] = line.resumed;
  return json;
}

Fault read_fault(JsonReader& reader) {
  Fault fault;
  reader.require("kind").word("kind", kFaults, fault.kind);
  reader.integer("step", 0, std::int64_t{1} << 24, fault.step);
  fault.until = fault.step;
  reader.integer("until", fault.step, std::int64_t{1} << 24, fault.until);
  reader.integer("layer", 0, (1 << 16) - 1, fault.layer);
  reader.integer("row", 0, 1 << 13, fault.row);
  reader.integer("block", 0, INT32_MAX, fault.block);
  reader.word("part", kParts, fault.part);
  reader.integer("by", -64, 64, fault.by);
  std::string tap;
  reader.text("tap", tap);
  if (const auto known = tap_from(tap); known)
    fault.tap = *known;
  else if (!tap.empty())
    reader.refuse(reader.path_of("tap"), "a tap", reader.at("tap"));
  reader.text("field", fault.field);
  reader.text("value", fault.value);
  reader.done();
  return fault;
}

Json print(const Fault& fault) {
  const Fault none;
  Json json = {{"kind", word_of(kFaults, fault.kind)}};
  if (fault.step >= 0) json["step"] = fault.step;
  if (fault.until != fault.step) json["until"] = fault.until;
  if (fault.layer >= 0) json["layer"] = fault.layer;
  if (fault.row >= 0) json["row"] = fault.row;
  if (fault.block >= 0) json["block"] = fault.block;
  if (fault.part != none.part) json["part"] = word_of(kParts, fault.part);
  if (fault.by != 0) json["by"] = fault.by;
  if (fault.tap != none.tap) json["tap"] = std::string(name_of(fault.tap));
  if (!fault.field.empty()) json["field"] = fault.field;
  if (!fault.value.empty()) json["value"] = fault.value;
  return json;
}

}  // namespace

Script read_script(JsonReader reader, const std::string& where, std::int64_t declared) {
  Script script;
  reader.flag("fill", script.fill);
  const std::string steps = reader.path_of("steps"), events = reader.path_of("events");
  std::int64_t found = 0;  // a few lines may ask for more steps than there is memory for
  for (JsonReader& line : objects(reader.require("steps").at("steps"), where, steps)) {
    const Repeated read = read_step(line);
    found += read.times;
    if (found <= declared) script.steps.insert(script.steps.end(), static_cast<std::size_t>(read.times), read.step);
  }
  if (found != declared) throw error(where, ": ", steps, ": expected ", declared, " steps, found ", found);
  if (reader.has("events"))
    for (JsonReader& event : objects(reader.at("events"), where, events)) script.events.push_back(read_event(event));
  reader.done();
  return script;
}

Json print(const Script& script) {
  Json steps = Json::array(), events = Json::array();
  for (const ScriptStep& step : script.steps) steps.push_back(print(step));
  for (const ScriptEvent& event : script.events) events.push_back(print(event));
  return {{"fill", script.fill}, {"steps", steps}, {"events", events}};
}

std::vector<Fault> read_faults(const Json& json, const std::string& where) {
  std::vector<Fault> faults;
  for (JsonReader& fault : objects(json, where, "faults")) faults.push_back(read_fault(fault));
  return faults;
}

Json print(const std::vector<Fault>& faults) {
  Json json = Json::array();
  for (const Fault& fault : faults) json.push_back(print(fault));
  return json;
}

}  // namespace gdnsim
