// What the subcommands share: how a command is registered, its common options, how files are opened, progress, exit codes.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gdnsim/backend.hpp"
#include "gdnsim/log.hpp"
#include "gdnsim/recipe.hpp"
#include "gdnsim/replay.hpp"
#include "gdnsim/report.hpp"
#include "gdnsim/trace.hpp"

namespace gdnsim::tools {

/// Like cmp and diff.
enum ExitCode : int { kMatch = 0, kDiverged = 1, kFailed = 2 };
int exit_code(Verdict verdict);

/// The job of the subcommand that was given; set by its callback, run after parsing.
using Job = std::function<int()>;

// One per cmd_*.cpp: registers the subcommand.
void add_run(CLI::App& root, Job& job);
void add_replay(CLI::App& root, Job& job);
void add_diff(CLI::App& root, Job& job);
void add_synth(CLI::App& root, Job& job);
void add_info(CLI::App& root, Job& job);
void add_verify(CLI::App& root, Job& job);
void add_contracts(CLI::App& root, Job& job);
void add_backends(CLI::App& root, Job& job);
void add_bench(CLI::App& root, Job& job);
void add_check(CLI::App& root, Job& job);
void add_fit(CLI::App& root, Job& job);
void add_explain(CLI::App& root, Job& job);
void add_bisect(CLI::App& root, Job& job);
void add_pack(CLI::App& root, Job& job);
void add_merge(CLI::App& root, Job& job);
void add_split(CLI::App& root, Job& job);
void add_drift(CLI::App& root, Job& job);

/// --json, --html (commands that print a Report), --force, --quiet, --no-progress.
struct OutputOptions {
  std::string json, html;
  bool force = false;
  bool quiet = false;
  bool no_progress = false;
  void add_to(CLI::App& command, bool reports = true);
  void add_html_to(CLI::App& command);
  bool json_on_stdout() const { return json == "-"; }
  /// Throws Error when the JSON file or the page exists and --force was not given, when no file can be made there, or when it is one of
  /// the command's other files: said before the work, not after it. What is there stays as it is.
  void check_target(const std::vector<std::string>& others) const;
  /// Writes the JSON where it was asked for; a file is replaced in one go, a device or a pipe is written as it is.
  void write_json(const nlohmann::ordered_json& report) const;
  /// Prints a report - its text, or its JSON in place of it - and writes the files that were asked for.
  void put(const Report& report) const;
  /// The same for one more file that the command writes.
  void check_file(const char* option, const std::string& path, const std::vector<std::string>& others) const;
};

/// A whole new file in place of `path`, or nothing; a device or a pipe is written as it is. Throws Error.
void write_output(const std::string& path, const std::string& text);
/// Throws Error when what a command would write is what it reads.
void require_apart(const std::string& output, const std::string& input);
/// True for the same file, whatever the spelling and whether it is there or not.
bool same_file(const std::string& a, const std::string& b);
/// For options that take a text: an empty one is a usage error, never "all" or "none".
CLI::Validator not_empty();

/// --layers and --steps; --rows and --blocks where single rows can be looked at.
struct SliceOptions {
  std::string layers, steps, rows, blocks;
  void add_to(CLI::App& command, bool with_rows = true);
  bool any() const { return !(layers.empty() && steps.empty() && rows.empty() && blocks.empty()); }
  Slice parsed() const;
  /// " --rows 2 --blocks 5": as given, for a command line that shows the same.
  std::string row_words() const;
  std::string words() const;
};
/// ", rows 2, blocks 5-7": a pick for a report; empty when it is all.
std::string pick_text(const Pick& pick);

/// --backend, --device, --threads.
struct BackendChoice {
  std::string name = "auto";
  BackendOptions options;
  const CLI::Option* device = nullptr;  // to tell whether it was given
  void add_to(CLI::App& command);
  ChosenBackend choose() const { return choose_backend(name, options); }
};

/// A trace, a log or a recipe, opened by what it is.
struct Input {
  std::string path;
  FileKind kind = FileKind::trace;
  std::unique_ptr<Trace> trace;
  std::unique_ptr<Log> log;
  std::unique_ptr<Stream> stream_of_log;  // what the log was made from
  std::unique_ptr<Stream> recipe;

  Stream& stream();
  Recording& recording();  // throws Error for a recipe
  /// The command that says more of a file with which a comparison came to nothing: of a log that lacks steps, why.
  std::string look_again() const;
};
Input open_input(const std::string& path);
/// What is odd about a trace that can be read all the same, a line each.
std::vector<std::string> trace_warnings(Trace& trace);
/// Opens what a log was made from: its recipe, or the trace at `trace_path` (empty: where the provenance says).
void open_source(Input& input, const std::string& trace_path);
/// Throws Error when --trace is given for a file that has no use for it: only a log of a trace has.
void require_trace_of_log(const Input& input, const std::string& trace_path);
/// What a log says of its making; empty when it says nothing of that.
std::string provenance_of(const LogHeader& header, const std::string& key);

/// The contracts that --contract names, or (auto) those that a log or a bundle says it was made under; else none: to be chosen
/// by the recorded bits.
struct NamedContracts {
  std::optional<ContractSet> contracts;
  std::string from;  // "given by --contract golden", "the log says so"
};
NamedContracts named_contracts(const std::string& option, const Input& input);

/// FILE, --contract and --trace of the commands that run a recording again.
struct RecordingOptions {
  std::string file, contract = "auto", trace;
  void add_to(CLI::App& command, const std::string& contract_means);
  Input open() const;  // a log with what it was made from
  /// The same again in a command line, under the contracts that were used.
  std::string words(const Input& input, const ContractSet& used) const;
  std::string trace_words() const;  // " --trace FILE", when it was given
};
void add_trace_option(CLI::App& command, std::string& trace);

/// One line for a report: what the input holds and which part was looked at.
std::string subject_of(const Input& input, Stream& stream, const Slice& slice);

/// A progress line on stderr, only on a terminal.
class Progress {
 public:
  Progress(std::string what, const OutputOptions& output);
  ~Progress();
  void update(std::int64_t done, std::int64_t total, std::uint64_t bytes = 0);
  /// Work that cannot say how much is left: what it is at.
  void stage(const std::string& what);

 private:
  const std::string what_;
  bool on_;
  bool shown_ = false;
  const double start_;
  double last_ = 0;
};

/// A message on stderr unless --quiet.
void say(const OutputOptions& output, const std::string& message);
/// "1.5 GiB"
std::string bytes_text(std::uint64_t bytes);
/// A path as a shell word, quoted when it must be, never an option and never what a terminal obeys.
std::string shell_word(const std::string& text);

}  // namespace gdnsim::tools
