#include "config_place.hpp"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <vector>

namespace gdnsim::tools {
namespace {

/// A line of the file: a key of a section, or (key empty) the section's own line. Key replay.mode is mode of section replay.
struct Setting {
  int line;
  std::string section, key;
  std::string name() const { return section.empty() || key.empty() ? section + key : section + "." + key; }
};

/// Quotes about a dotted key stay, as in CLI11: they belong to its parts.
std::string bare(std::string text) {
  CLI::detail::trim(text);
  return text.find('.') == text.npos ? CLI::detail::remove_quotes(text) : text;
}

/// The section is as it stands within its outermost brackets: [replay] or, as TOML's arrays of tables, [[replay]].
Setting setting_of(int line, std::string section, std::string key) {
  if (section.size() > 1 && section.front() == '[' && section.back() == ']')
    section = section.substr(1, section.size() - 2);
  const std::vector<std::string> parents = CLI::detail::generate_parents(section, key, '.');
  return {line, CLI::detail::join(parents, "."), key};
}

/// Does the list that `text` (what is behind the =) begins go on in the next line? A comment ends the text.
bool opens_list(std::string text) {
  text.resize(std::min(text.size(), text.find('#')));
  CLI::detail::trim(text);
  return text.size() > 1 && text.front() == '[' && text.back() != ']';
}

/// The lines as CLI11 2.1.2 takes them (ConfigBase::from_config), without the values. A value that begins with [ goes on to the
/// first line that ends with ]. A # begins a comment in the value's first line only: in the others it is part of the value.
std::vector<Setting> settings_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<Setting> settings;
  std::string section = "default";  // of the lines before the first section
  int number = 0;
  bool in_list = false;
  for (std::string line; std::getline(file, line);) {
    ++number;
    CLI::detail::trim(line);
    const bool continues = in_list;
    if (in_list) in_list = !line.ends_with(']');
    if (continues || line.size() < 3 || line.front() == ';' || line.front() == '#') continue;
    if (line.front() == '[' && line.back() == ']') {
      section = line.substr(1, line.size() - 2);
      settings.push_back(setting_of(number, section, ""));
      continue;
    }
    const std::size_t equals = line.find('=');
    settings.push_back(setting_of(number, section, bare(line.substr(0, std::min(equals, line.find('#'))))));
    in_list = equals != line.npos && opens_list(line.substr(equals + 1));
  }
  return settings;
}

/// The file that was read; empty: none.
std::string config_file(const CLI::App& root) {
  const CLI::Option* option = root.get_config_ptr();
  return option == nullptr || option->count() == 0 ? "" : option->results().back();
}

std::string place(const std::string& path, int line) { return path + ": line " + std::to_string(line) + ": "; }

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

/// CLI::RequiredError, by its words: the running command lacks an option, which no line of the file can be blamed for.
bool is_lack(const std::string& message) { return message.ends_with(" is required"); }

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
  if (path.empty() || root.get_subcommands().empty() || (parsing && is_lack(message))) return "";
  const CLI::App& command = *root.get_subcommands().front();
  int others = 0;
  for (const Setting& setting : settings_of(path)) {
    if (setting.key.empty() || !speaks_of(message, setting.key) || is_on_line(command, setting.key, argc, argv))
      continue;
    if (setting.name() == command.get_name() + "." + setting.key) return place(path, setting.line);
    if (others == 0) others = setting.line;
  }
  return parsing && others > 0 ? place(path, others) : "";
}

std::string config_fault(const CLI::App& root, const CLI::ConfigError& problem) {
  const std::string path = config_file(root);
  std::string name = problem.what();
  name = name.substr(name.rfind(' ') + 1);
  if (name.ends_with(".++")) name.resize(name.size() - 3);  // a section's own line
  for (const Setting& setting : settings_of(path))
    if (setting.name() == name)
      return place(path, setting.line) + name + ": no such " + (setting.key.empty() ? "command" : "option");
  return path + ": " + problem.what();
}

}  // namespace gdnsim::tools
