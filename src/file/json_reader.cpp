#include "file/json_reader.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace gdnsim {
namespace {

std::string list_of(std::span<const std::string_view> words) {
  std::string text;
  for (std::string_view word : words) text.append(text.empty() ? "" : ", ").append("\"").append(word).append("\"");
  return text;
}

/// The value as it stands in the file, cut short.
std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

constexpr int kDeepest = 64;  // far more than a recipe has; far less than a stack

/// Told of every key; throws at the second of a name inside one object.
class RepeatedKeys {
 public:
  explicit RepeatedKeys(const std::string& where) : where_(where) {}
  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kDeepest) throw error(where_, ": expected at most ", kDeepest, " levels of brackets");
    if (event == Json::parse_event_t::object_start) open_.emplace_back();
    if (event == Json::parse_event_t::object_end) open_.pop_back();
    if (event == Json::parse_event_t::key && !open_.back().insert(parsed.get<std::string>()).second)
      throw error(where_, ": ", parsed.get<std::string>(), ": expected each key once, found it twice");
    return true;
  }

 private:
  const std::string& where_;
  std::vector<std::set<std::string>> open_;
};

}  // namespace

Json parse_json(const std::string& text, const std::string& where) {
  try {
    RepeatedKeys repeated(where);
    return Json::parse(
        text, [&](int depth, Json::parse_event_t event, Json& parsed) { return repeated(depth, event, parsed); });
  } catch (const Json::parse_error& e) {
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(e.byte, text.size()));
    throw error(where, ": line ", std::count(text.begin(), end, '\n') + 1, ": expected valid JSON (byte ", e.byte, ")");
  } catch (const Json::out_of_range&) {
    throw error(where, ": expected numbers in the range of double, found a larger one");
  }
}

JsonReader::JsonReader(const Json& object, std::string where, std::string path)
    : object_(object), where_(std::move(where)), path_(std::move(path)) {
  if (!object.is_object()) refuse(path_.empty() ? "the document" : path_, "an object", object);
}

std::string JsonReader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

void JsonReader::refuse(const std::string& path, const std::string& expected, const Json& found) const {
  throw error(where_, ": ", path, ": expected ", expected, ", found ", shown(found));
}

JsonReader& JsonReader::require(std::string_view key) {
  if (!has(key)) throw error(where_, ": ", path_of(key), ": expected this key, found none");
  return *this;
}

const Json& JsonReader::at(std::string_view key) {
  read_.emplace(key);
  return object_.at(std::string(key));
}

std::int64_t JsonReader::integer_of(const Json& value, const std::string& path, std::int64_t lowest,
                                    std::int64_t highest) const {
  const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX)
                                               : value.is_number_integer();
  if (!fits || value.get<std::int64_t>() < lowest || value.get<std::int64_t>() > highest)
    refuse(path, "a whole number from " + std::to_string(lowest) + " to " + std::to_string(highest), value);
  return value.get<std::int64_t>();
}

float JsonReader::float_of(const Json& value, const std::string& path) const {
  const bool fits = value.is_number() && std::isfinite(static_cast<float>(value.get<double>()));
  if (!fits) refuse(path, "a number in the range of f32", value);
  return static_cast<float>(value.get<double>());
}

std::size_t JsonReader::position(const Json& value, const std::string& path,
                                 std::span<const std::string_view> words) const {
  const auto found = value.is_string() ? std::find(words.begin(), words.end(), value.get<std::string>()) : words.end();
  if (found == words.end()) refuse(path, "one of " + list_of(words), value);
  return static_cast<std::size_t>(found - words.begin());
}

void JsonReader::integer(std::string_view key, std::int64_t lowest, std::int64_t highest, std::int64_t& out) {
  if (has(key)) out = integer_of(at(key), path_of(key), lowest, highest);
}

void JsonReader::integer(std::string_view key, int lowest, int highest, int& out) {
  if (has(key)) out = static_cast<int>(integer_of(at(key), path_of(key), lowest, highest));
}

void JsonReader::seed(std::string_view key, std::uint64_t& out) {
  if (!has(key)) return;
  const Json& value = at(key);
  if (!value.is_number_unsigned()) refuse(path_of(key), "a whole number from 0 to 18446744073709551615", value);
  out = value.get<std::uint64_t>();
}

void JsonReader::number(std::string_view key, double lowest, double highest, double& out) {
  if (!has(key)) return;
  const Json& value = at(key);
  if (!value.is_number() || !(value.get<double>() >= lowest && value.get<double>() <= highest))
    refuse(path_of(key), "a number from " + Json(lowest).dump() + " to " + Json(highest).dump(), value);
  out = value.get<double>() + 0.0;  // -0 is 0
}

void JsonReader::number(std::string_view key, float& out) {
  if (has(key)) out = float_of(at(key), path_of(key));
}

void JsonReader::flag(std::string_view key, bool& out) {
  if (!has(key)) return;
  const Json& value = at(key);
  if (!value.is_boolean()) refuse(path_of(key), "true or false", value);
  out = value.get<bool>();
}

void JsonReader::text(std::string_view key, std::string& out) {
  if (!has(key)) return;
  const Json& value = at(key);
  if (!value.is_string()) refuse(path_of(key), "a text", value);
  out = value.get<std::string>();
}

std::vector<std::size_t> JsonReader::words(std::string_view key, std::span<const std::string_view> words) {
  const Json& array = at(key);
  if (!array.is_array()) refuse(path_of(key), "an array of words", array);
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < array.size(); ++i) {
    const std::string path = path_of(key) + "[" + std::to_string(i) + "]";
    out.push_back(position(array[i], path, words));
    if (std::count(out.begin(), out.end(), out.back()) > 1) refuse(path, "each word once", array[i]);
  }
  return out;
}

std::vector<std::int32_t> JsonReader::integers(std::string_view key, std::int32_t lowest, std::int32_t highest) {
  const Json& array = at(key);
  if (!array.is_array()) refuse(path_of(key), "an array of whole numbers", array);
  std::vector<std::int32_t> out;
  for (std::size_t i = 0; i < array.size(); ++i)
    out.push_back(
        static_cast<std::int32_t>(integer_of(array[i], path_of(key) + "[" + std::to_string(i) + "]", lowest, highest)));
  return out;
}

std::vector<float> JsonReader::numbers(std::string_view key, std::size_t count) {
  const Json& array = at(key);
  if (!array.is_array() || array.size() != count)
    refuse(path_of(key), "an array of " + std::to_string(count) + " numbers", array);
  std::vector<float> out;
  for (std::size_t i = 0; i < count; ++i)
    out.push_back(float_of(array[i], path_of(key) + "[" + std::to_string(i) + "]"));
  return out;
}

void JsonReader::done() const {
  for (const auto& [key, value] : object_.items())
    if (!read_.contains(key)) throw error(where_, ": ", path_of(key), ": expected only known keys, found this one");
}

Json json_of(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text - 1, value).ptr;
  *end = '\0';
  double number = 0;
  std::from_chars(text, end, number);
  return static_cast<float>(number) == value ? number : static_cast<double>(value);
}

}  // namespace gdnsim
