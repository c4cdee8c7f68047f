// The program: one subcommand a file. Exit codes as cmp and diff have them: 0 match or done, 1 diverged, 2 could not.
#include <csignal>
#include <filesystem>
#include <iostream>
#include <new>

#include "cli.hpp"
#include "config_place.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/version.hpp"
#include "mpi_ranks.hpp"

namespace gdnsim::tools {
namespace {

constexpr const char* kAbout =
    "Replays the decode steps of Gated DeltaNet layers to the last bit and says where two runs part ways.\n"
    "Exit code: 0 match or done, 1 diverged, 2 could not compare.";

int fail(const std::string& message) {
  const int rank = launched().rank;
  const std::string who = rank > 0 ? "rank " + std::to_string(rank) + ": " : "";
  std::cerr << "gdnsim: " + who + printable(message) + "\n";  // in one piece: other ranks may speak too
  return kFailed;
}

/// The exit code of a job, unless what it printed was lost.
int printed(int code) {
  std::cout.flush();
  return std::cout ? code : fail("stdout: cannot be written");
}

/// Where the options of what was asked are listed.
std::string help_of(const CLI::App& root, int argc, char** argv) {
  for (const CLI::App* command : root.get_subcommands([](const CLI::App*) { return true; }))
    for (int i = 1; i < argc; ++i)
      if (command->get_name() == argv[i]) return " (gdnsim " + command->get_name() + " --help lists the options)";
  return " (gdnsim --help lists the commands)";
}

/// Is the first word an option or a command?
bool knows(const CLI::App& root, const std::string& word) {
  const auto commands = root.get_subcommands([&](const CLI::App* command) { return command->get_name() == word; });
  return word.starts_with("-") || !commands.empty();
}

/// Parses, then runs the chosen job. Usage errors, bad files and exhausted memory all end in one line and exit code 2.
int run(CLI::App& root, const Job& job, int argc, char** argv) {
  if (argc > 1 && !knows(root, argv[1]))  // said at once: the parser would hear a --help behind it
    return fail(std::string(argv[1]) + ": no such command or option" + help_of(root, argc, argv));
  try {
    root.parse(argc, argv);
    const std::string command = root.get_subcommands().front()->get_name();
    if (command != "replay" && command != "drift") require_alone(command);
    return printed(job());
  } catch (const CLI::ConfigError& problem) {
    return fail(config_fault(root, problem));
  } catch (const CLI::ParseError& problem) {
    if (problem.get_exit_code() == 0) return printed(root.exit(problem));  // --help, --version
    const bool lacks = dynamic_cast<const CLI::RequiredError*>(&problem) != nullptr;
    if (const auto words = root.remaining(true); !words.empty() && lacks)  // said before what would be missing then
      return fail(words.front() + ": no such command or option" + help_of(root, argc, argv));
    // What the command line lacks no setting can be blamed for.
    const std::string place = lacks ? "" : config_place(root, problem.what(), true, argc, argv);
    return fail(place + problem.what() + help_of(root, argc, argv));
  } catch (const Error& problem) {
    const std::string what = problem.what();
    return fail((what.starts_with("--") ? config_place(root, what, false, argc, argv) : "") + what);
  } catch (const std::filesystem::filesystem_error& problem) {  // a folder that may not be searched, a name too long
    return fail(problem.path1().string() + ": cannot be reached: " + problem.code().message());
  } catch (const std::bad_alloc&) {
    return fail("not enough memory; try fewer --layers or --steps");
  } catch (const std::exception& problem) {
    return fail(std::string("internal error: ") + problem.what() + "; please report this");
  }
}

}  // namespace
}  // namespace gdnsim::tools

int main(int argc, char** argv) {
  using namespace gdnsim::tools;
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is a failed write, not a silent death
  std::signal(SIGXFSZ, SIG_IGN);  // so is a file-size limit
  CLI::App root(kAbout, "gdnsim");
  root.set_version_flag("--version", std::string("gdnsim ") + gdnsim::version());
  root.set_config("--config", "",
                  "read options from FILE: a [section] for each subcommand, as in '[replay]' 'contract = \"golden\"'");
  root.allow_config_extras(CLI::config_extras_mode::error);
  root.require_subcommand(1);
  Job job;
  add_run(root, job);
  add_replay(root, job);
  add_diff(root, job);
  add_synth(root, job);
  add_fit(root, job);
  add_explain(root, job);
  add_bisect(root, job);
  add_pack(root, job);
  add_merge(root, job);
  add_drift(root, job);
  add_split(root, job);
  add_info(root, job);
  add_verify(root, job);
  add_contracts(root, job);
  add_backends(root, job);
  add_check(root, job);
  add_bench(root, job);
  return leave_ranks(run(root, job, argc, argv));
}
