// Usage errors whose cause is in the file of --config: the parser names the option, not the file.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace gdnsim::tools {

/// "FILE: replay.mode: " where a setting of that file is what the message is about; empty where the command line is, or no file
/// was read. `message` names an option, as in "--mode: banana not in ...". `parsing`: the parser said it, which reads the sections of
/// all commands; else it is of the command that runs.
std::string config_place(const CLI::App& root, const std::string& message, bool parsing, int argc, char** argv);

/// What the parser says of the file itself, with the file.
std::string config_fault(const CLI::App& root, const CLI::ConfigError& problem);

}  // namespace gdnsim::tools
