// How a report spells words, models and lists.
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "gdnsim/arith.hpp"
#include "gdnsim/report.hpp"

namespace gdnsim {
namespace {

std::string shortest(float x) {
  std::array<char, 64> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), x).ptr;
  return {buffer.data(), end};
}

float widened_word(DType type, std::uint32_t word) { return static_cast<float>(value_of(type, word)); }

/// Length of the UTF-8 sequence at `at`, or 0: lead byte and continuation bytes are looked at, nothing more.
std::size_t utf8_length(const std::string& text, std::size_t at) {
  const unsigned char lead = static_cast<unsigned char>(text[at]);
  const std::size_t length = lead < 0x80                   ? 1
                             : lead >= 0xC2 && lead < 0xE0 ? 2
                             : lead >= 0xE0 && lead < 0xF0 ? 3
                             : lead >= 0xF0 && lead < 0xF5 ? 4
                                                           : 0;
  if (at + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((static_cast<unsigned char>(text[at + i]) & 0xC0) != 0x80) return 0;
  return length;
}

}  // namespace

std::string printable(const std::string& message) {
  std::string line;
  for (std::size_t at = 0; at < message.size();) {
    const std::size_t length = utf8_length(message, at);
    const bool control = length == 1 && (static_cast<unsigned char>(message[at]) < 0x20 || message[at] == 0x7F);
    line += length == 0 || control ? "?" : message.substr(at, length);
    at += length == 0 ? 1 : length;
  }
  return line;
}

std::string value_text(DType type, std::uint32_t word) {
  const float x = widened_word(type, word);
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  return shortest(x);
}

std::string hex_text(DType type, std::uint32_t word) {
  std::array<char, 16> buffer{};
  std::snprintf(buffer.data(), buffer.size(), type == DType::f32 ? "0x%08x" : "0x%04x", word);
  return buffer.data();
}

std::string describe(const Model& model) {
  std::ostringstream text;
  text << "H " << model.H << ", HV " << model.HV << ", K " << model.K << ", V " << model.V << ", W " << model.W << "; "
       << name_of(model.state_dtype) << " state, " << name_of(model.conv_state_dtype) << " conv state, "
       << name_of(model.act_dtype) << " activations";
  return text.str();
}

std::string layers_text(const std::vector<int>& layers) {
  std::string text;
  for (std::size_t i = 0; i < layers.size();) {
    std::size_t last = i;
    while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(layers[i]);
    if (last > i) text += "-" + std::to_string(layers[last]);
    i = last + 1;
  }
  return text;
}

std::string scope_text(const Scope& scope) {
  std::vector<std::string> words;
  const auto add = [&](const char* name, std::int64_t value) {
    if (value >= 0) words.push_back(std::string(name) + " " + std::to_string(value));
  };
  const std::int64_t from = scope.from_step, to = scope.to_step;
  if (from >= 0 && to > from)
    words.push_back("steps " + std::to_string(from) + " to " + std::to_string(to));
  else if (from >= 0 && to < 0)
    words.push_back("from step " + std::to_string(from) + " on");
  else if (from < 0 && to >= 0)
    words.push_back("up to step " + std::to_string(to));
  else
    add("step", from);
  add("layer", scope.layer), add("row", scope.row), add("block", scope.block), add("head", scope.head);
  if (words.empty()) return "everywhere";
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace gdnsim
