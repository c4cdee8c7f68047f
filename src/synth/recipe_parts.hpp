// The parts of a recipe's text that have a file of their own. Private to recipes.
#pragma once

#include "file/json_reader.hpp"
#include "gdnsim/recipe.hpp"

namespace gdnsim {

template <class Enum>
std::string word_of(std::span<const std::string_view> words, Enum value) {
  return std::string(words[static_cast<std::size_t>(value)]);
}

/// recipe_script.cpp. `declared`: the steps that the recipe says it has.
Script read_script(JsonReader reader, const std::string& where, std::int64_t declared);
Json print(const Script& script);
std::vector<Fault> read_faults(const Json& json, const std::string& where);
Json print(const std::vector<Fault>& faults);

}  // namespace gdnsim
