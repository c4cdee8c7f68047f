// Precompiled: the two large headers that every subcommand includes.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
