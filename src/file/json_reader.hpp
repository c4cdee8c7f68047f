// Strict reading of JSON objects: every key known and given once, every value of the right type and in range. Whatever is
// not so throws Error naming the key's path, what was expected and what was found.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "gdnsim/error.hpp"

namespace gdnsim {

using Json = nlohmann::ordered_json;

/// Parses one JSON document; refuses repeated keys.
Json parse_json(const std::string& text, const std::string& where);

/// One object. Getters leave `out` alone when the key is absent, unless the key was declared required.
class JsonReader {
 public:
  /// `where` opens error lines, `path` is the object's own ("" at the top).
  JsonReader(const Json& object, std::string where, std::string path);

  JsonReader& require(std::string_view key);
  bool has(std::string_view key) const { return object_.contains(key); }
  /// The value of a key that is there, marked as read.
  const Json& at(std::string_view key);
  /// A reader for the object under a key that is there.
  JsonReader object(std::string_view key) { return JsonReader(at(key), where_, path_of(key)); }

  void integer(std::string_view key, std::int64_t lowest, std::int64_t highest, std::int64_t& out);
  void integer(std::string_view key, int lowest, int highest, int& out);
  void seed(std::string_view key, std::uint64_t& out);
  void number(std::string_view key, double lowest, double highest, double& out);
  void number(std::string_view key, float& out);
  void flag(std::string_view key, bool& out);
  void text(std::string_view key, std::string& out);
  /// One of `words`; gives its position.
  template <class Enum>
  void word(std::string_view key, std::span<const std::string_view> words, Enum& out) {
    if (has(key)) out = static_cast<Enum>(position(at(key), path_of(key), words));
  }
  /// An array of distinct words.
  std::vector<std::size_t> words(std::string_view key, std::span<const std::string_view> words);
  /// An array of integers.
  std::vector<std::int32_t> integers(std::string_view key, std::int32_t lowest, std::int32_t highest);
  /// An array of exactly `count` finite f32 numbers.
  std::vector<float> numbers(std::string_view key, std::size_t count);

  /// Call last: throws when a key was not read.
  void done() const;

  std::string path_of(std::string_view key) const;
  [[noreturn]] void refuse(const std::string& path, const std::string& expected, const Json& found) const;

 private:
  std::int64_t integer_of(const Json& value, const std::string& path, std::int64_t lowest, std::int64_t highest) const;
  float float_of(const Json& value, const std::string& path) const;
  std::size_t position(const Json& value, const std::string& path, std::span<const std::string_view> words) const;

  const Json& object_;
  std::string where_, path_;
  std::set<std::string, std::less<>> read_;
};

/// A float as JSON: its shortest decimal form.
Json json_of(float value);

}  // namespace gdnsim
