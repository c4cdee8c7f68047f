#include "config_place.hpp"

#include <algorithm>
#include <cctype>
#include <vector>

namespace gdnsim::tools {
namespace {

/// The file that was read; empty: none.
std::string config_file(const CLI::App& root) {
  const CLI::Option* option = root.get_config_ptr();
  return option == nullptr || option->count() == 0 ? "" : option->results().back();
}

/// Its settings, as the parser reads them; none where it cannot be read, which the message says already.
std::vector<CLI::ConfigItem> settings_of(const CLI::App& root, const std::string& path) {
  try {
    return root.get_config_formatter()->from_file(path);
  } catch (const CLI::FileError&) {
    return {};
  }
}

/// Is the option "--key" what the message speaks of? "--step" is not "--steps".
bool speaks_of(const std::string& message, const std::string& key) {
  const std::string option = "--" + key;
  for (std::size_t at = message.find(option); at != message.npos; at = message.find(option, at + 1)) {
    const std::size_t end = at + option.size();
    if (end == message.size()) return true;
    if (std::isalnum(static_cast<unsigned char>(message[end])) == 0 && message[end] != '-') return true;
  }
  return false;
}

/// The command line has the last word.
bool is_on_line(const CLI::App& command, const std::string& key, int argc, char** argv) {
  const CLI::Option* option = command.get_option_no_throw("--" + key);
  return std::any_of(argv + 1, argv + argc, [&](const std::string& word) {
    const bool is_long = word == "--" + key || word.starts_with("--" + key + "=");
    return is_long || (option != nullptr && std::ranges::any_of(option->get_snames(), [&](const std::string& name) {
                         return word.starts_with("-" + name);
                       }));
  });
}

}  // namespace

std::string config_place(const CLI::App& root, const std::string& message, bool parsing, int argc, char** argv) {
  const std::string path = config_file(root);
  if (path.empty() || root.get_subcommands().empty()) return "";
  const CLI::App& command = *root.get_subcommands().front();
  std::string other;
  for (const CLI::ConfigItem& item : settings_of(root, path)) {
    if (!speaks_of(message, item.name) || is_on_line(command, item.name, argc, argv)) continue;
    if (item.fullname() == command.get_name() + "." + item.name) return path + ": " + item.fullname() + ": ";
    other = path + ": " + item.fullname() + ": ";
  }
  return parsing ? other : "";
}

std::string config_fault(const CLI::App& root, const CLI::ConfigError& problem) {
  const std::string what = problem.what(), unknown = "INI was not able to parse ";
  if (!what.starts_with(unknown)) return config_file(root) + ": " + what;
  std::string name = what.substr(unknown.size());
  const bool is_section = name.ends_with(".++");
  if (is_section) name.resize(name.size() - 3);
  return config_file(root) + ": " + name + ": no such " + (is_section ? "command" : "option");
}

}  // namespace gdnsim::tools
