#include "cli.hpp"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>

#include "gdnsim/error.hpp"
#include "gdnsim/gates.hpp"
#include "gdnsim/pack.hpp"

namespace gdnsim::tools {
namespace {

constexpr std::int64_t kMostLayers = 65535, kMostRows = (1 << 24) - 1;  // a list of more is a slip of the keyboard

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::int64_t whole_number(const std::string& text, const std::string& option, const std::string& form) {
  if (text.empty() || text.size() > 15 || text.find_first_not_of("0123456789") != std::string::npos)
    throw error(option, ": expected ", form, ", found '", text, "'");
  return std::stoll(text);
}

/// "0-3,5" as numbers, each of at most `most`.
std::vector<int> parse_list(const std::string& option, const std::string& text, std::int64_t most) {
  const std::string form = "a list like 0,2 or 0-3,7";
  std::vector<int> numbers;
  std::istringstream in(text);
  for (std::string piece; std::getline(in, piece, ',');) {
    const auto dash = piece.find('-');
    const std::int64_t low = whole_number(piece.substr(0, dash), option, form);
    const std::int64_t high = dash == std::string::npos ? low : whole_number(piece.substr(dash + 1), option, form);
    if (high < low || high > most) throw error(option, ": expected ", form, ", found '", text, "'");
    for (std::int64_t number = low; number <= high; ++number) numbers.push_back(static_cast<int>(number));
  }
  if (numbers.empty()) throw error(option, ": expected ", form, ", found '", text, "'");
  return numbers;
}

/// "A:B", either side may be missing.
void parse_steps(const std::string& text, Slice& slice) {
  const std::string form = "a range A:B (first step, step after the last)";
  const auto colon = text.find(':');
  if (colon == std::string::npos || text.size() == 1) throw error("--steps: expected ", form, ", found '", text, "'");
  if (colon > 0) slice.first_step = whole_number(text.substr(0, colon), "--steps", form);
  if (colon + 1 < text.size()) slice.last_step = whole_number(text.substr(colon + 1), "--steps", form);
}

/// A device, pipe or socket: written in place; nothing is there that could be lost.
bool is_sink(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode) &&
         !S_ISBLK(status.st_mode);
}

/// What an errno value means, and the limit when a file was too large for it.
std::string reason_text(int failed) {
  struct rlimit limit;
  std::string text = std::generic_category().message(failed);
  if (failed == EFBIG && ::getrlimit(RLIMIT_FSIZE, &limit) == 0)
    text += "; no file may have more than " + std::to_string(limit.rlim_cur) + " bytes here (RLIMIT_FSIZE, ulimit -f)";
  return text;
}

/// Returns an errno value, 0 when all is written.
int write_file(const std::string& path, const char* mode, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), mode);
  if (file == nullptr) return errno;
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int failed = written ? 0 : errno;
  return std::fclose(file) == 0 ? failed : errno;
}

/// What is replaced by writing to `path`: a link to something that is there stays one.
std::string target_of(const std::string& path) {
  std::error_code none;
  return std::filesystem::is_symlink(path, none) ? std::filesystem::weakly_canonical(path, none).string() : path;
}

/// The name under which it is written first.
std::string temporary_of(const std::string& target) { return target + ".partial." + std::to_string(::getpid()); }

/// Can a file be made where `path` will be written? Nothing is left there. Returns an errno value.
int try_to_make(const std::string& path) {
  const std::string temporary = temporary_of(target_of(path));
  const int failed = write_file(temporary, "wbx", "");
  if (failed == EEXIST) return 0;  // another host's process of the same number tries it just now
  std::remove(temporary.c_str());
  return failed;
}

/// A whole new file in place of `path`, or nothing: returns an errno value.
int replace_file(const std::string& path, const std::string& text) {
  const std::string target = target_of(path), temporary = temporary_of(target);
  int failed = write_file(temporary, "wbx", text);
  if (failed == 0) failed = std::rename(temporary.c_str(), target.c_str()) == 0 ? 0 : errno;
  if (failed != 0 && failed != EEXIST) std::remove(temporary.c_str());
  return failed;
}

/// The trace that a log says it was made from. Where it cannot be opened the line names both, and what to do.
std::unique_ptr<Trace> open_trace_of(const Input& input) {
  const std::string path = provenance_of(input.log->header(), "trace");
  if (path.empty()) throw error(input.path, ": does not say where its trace is; name it with --trace FILE");
  try {
    return open_trace(path);
  } catch (const Error& problem) {
    throw error(input.path, ": the trace that it was made from: ", problem.what(), "; name it with --trace FILE");
  }
}

/// A word that no terminal obeys and every POSIX shell takes for the same bytes: "$(printf 'a\012b')". What $(...) prints loses
/// the newlines at its end: each of those is the third character of such a shell's own IFS (space, tab, newline).
std::string printf_word(const std::string& text) {
  const std::size_t end = text.find_last_not_of('\n') + 1;
  std::string word = "\"$(printf '";
  for (const char c : text.substr(0, end)) {
    std::array<char, 8> octal{};
    std::snprintf(octal.data(), octal.size(), "\\%03o", static_cast<unsigned>(static_cast<unsigned char>(c)));
    const bool plain = c >= ' ' && c <= '~' && c != '\'' && c != '\\' && c != '%';
    word += plain ? std::string(1, c) : octal.data();
  }
  word += "')";
  for (std::size_t at = end; at < text.size(); ++at) word += "${IFS#??}";
  return word + "\"";
}

}  // namespace

bool same_file(const std::string& a, const std::string& b) {
  std::error_code failed;
  if (a.empty() || b.empty()) return false;
  if (std::filesystem::equivalent(a, b, failed)) return true;
  const auto x = std::filesystem::weakly_canonical(std::filesystem::absolute(a), failed);
  return x == std::filesystem::weakly_canonical(std::filesystem::absolute(b), failed);
}

std::string provenance_of(const LogHeader& header, const std::string& key) {
  for (const auto& [name, value] : header.provenance)
    if (name == key) return value;
  return "";
}

int exit_code(Verdict verdict) {
  return verdict == Verdict::match ? kMatch : verdict == Verdict::diverged ? kDiverged : kFailed;
}

void OutputOptions::add_to(CLI::App& command, bool reports) {
  if (reports)
    command.add_option("--json", json, "write the report as JSON to FILE ('-': to stdout instead of the text)")
        ->type_name("FILE")
        ->check(not_empty());
  command.add_flag("--force", force, "replace existing output files");
  command.add_flag("--quiet", quiet, "no messages on stderr but errors");
  command.add_flag("--no-progress", no_progress, "no progress line");
}

void OutputOptions::add_html_to(CLI::App& command) {
  command.add_option("--html", html, "write the report as one page for a browser to FILE")
      ->type_name("FILE")
      ->check(not_empty());
}

void OutputOptions::check_file(const char* option, const std::string& path,
                               const std::vector<std::string>& others) const {
  for (const std::string& other : others)
    if (same_file(path, other)) throw error(option, " ", path, ": is another file of this command");
  if (std::filesystem::is_directory(path)) throw error(option, " ", path, ": expected a file, found a directory");
  if (!force && std::filesystem::exists(std::filesystem::symlink_status(path)) && !is_sink(path))
    throw error(path, ": exists already; --force replaces it");
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  if (!std::filesystem::is_directory(folder))
    throw error(option, " ", path, ": cannot be written: there is no folder ", folder.string());
  if (const int failed = is_sink(path) ? 0 : try_to_make(path); failed != 0)
    throw error(option, " ", path, ": cannot be written: ", reason_text(failed));
}

void OutputOptions::check_target(const std::vector<std::string>& others) const {
  if (!json.empty() && json != "-") check_file("--json", json, others);
  if (html.empty()) return;
  if (html == "-") throw error("--html: expected a file, found '-'; only --json goes to stdout");
  check_file("--html", html, others);
  if (json != "-" && same_file(html, json)) throw error("--html ", html, ": is another file of this command");
}

void write_output(const std::string& path, const std::string& text) {
  const int failed = is_sink(path) ? write_file(path, "wb", text) : replace_file(path, text);
  if (failed != 0) throw error(path, ": cannot be written: ", reason_text(failed));
}

void OutputOptions::write_json(const nlohmann::ordered_json& report) const {
  if (json.empty()) return;
  const std::string text = json_text(report) + "\n";
  if (json == "-")
    std::cout << text;
  else
    write_output(json, text);
}

void OutputOptions::put(const Report& report) const {
  if (json_on_stdout())
    say(*this, verdict_line(report));
  else
    print_text(std::cout, report);
  write_json(to_json(report));
  if (!html.empty()) write_output(html, to_html(report));
}

void require_apart(const std::string& output, const std::string& input) {
  if (same_file(output, input)) throw error(output, ": is what the command reads; it cannot be its output as well");
}

CLI::Validator not_empty() {
  return {
      [](const std::string& text) { return text.empty() ? std::string("expected a value, found ''") : std::string(); },
      ""};
}

void SliceOptions::add_to(CLI::App& command, bool with_rows) {
  command.add_option("--layers", layers, "layer positions, like 0,2 or 0-3 (default: all)")
      ->type_name("LIST")
      ->check(not_empty());
  command.add_option("--steps", steps, "steps A:B, A included, B not (default: all)")
      ->type_name("A:B")
      ->check(not_empty());
  if (!with_rows) return;
  command.add_option("--rows", rows, "rows of the batch alone, like 0,2 or 0-3 (default: all)")
      ->type_name("LIST")
      ->check(not_empty());
  command.add_option("--blocks", blocks, "rows on these blocks alone, and the blocks' states (default: all)")
      ->type_name("LIST")
      ->check(not_empty());
}

Slice SliceOptions::parsed() const {
  Slice slice;
  if (!layers.empty()) slice.layers = parse_list("--layers", layers, kMostLayers);
  if (!steps.empty()) parse_steps(steps, slice);
  if (!rows.empty()) slice.pick.rows = parse_list("--rows", rows, kMostRows);
  if (!blocks.empty()) slice.pick.blocks = parse_list("--blocks", blocks, kMostRows);
  return slice;
}

std::string SliceOptions::row_words() const {
  return (rows.empty() ? "" : " --rows " + shell_word(rows)) +
         (blocks.empty() ? "" : " --blocks " + shell_word(blocks));
}

std::string SliceOptions::words() const {
  return (layers.empty() ? "" : " --layers " + shell_word(layers)) +
         (steps.empty() ? "" : " --steps " + shell_word(steps)) + row_words();
}

std::string pick_text(const Pick& pick) {
  return (pick.rows.empty() ? "" : ", rows " + layers_text(pick.rows)) +
         (pick.blocks.empty() ? "" : ", blocks " + layers_text(pick.blocks));
}

void BackendChoice::add_to(CLI::App& command) {
  command.add_option("--backend", name, "auto, golden or cuda")->capture_default_str();
  device = command.add_option("--device", options.device, "which CUDA device")
               ->capture_default_str()
               ->check(CLI::Range(0, 1023));
  command.add_option("--threads", options.threads, "CPU threads (default: all)")->check(CLI::Range(1, 1024));
  command
      .add_option("--cpu-level", options.cpu_level,
                  "golden's instructions: plain, sse2, avx2 or avx512 (default: the best that the CPU has); same bits")
      ->type_name("LEVEL")
      ->check(not_empty());
}

Stream& Input::stream() {
  if (trace) return *trace;
  if (recipe) return *recipe;
  GDNSIM_CHECK(stream_of_log != nullptr);
  return *stream_of_log;
}

Recording& Input::recording() {
  if (trace) return *trace;
  if (log) return *log;
  throw error(path, ": a recipe holds no recorded outputs to compare with; 'gdnsim run' makes a log from it");
}

std::string Input::look_again() const {
  const bool incomplete = log && log->steps() < log->declared_steps();
  return (incomplete ? "gdnsim verify " : "gdnsim info ") + shell_word(path);
}

std::vector<std::string> trace_warnings(Trace& trace) {
  std::vector<std::string> lines = gate_warnings(trace);
  for (const std::string& path : trace.unknown())
    lines.push_back(path + ": the trace format knows no such name; it is not read and not compared");
  return lines;
}

Input open_input(const std::string& path) {
  Input input;
  input.path = path;
  input.kind = kind_of_file(path);
  switch (input.kind) {
    case FileKind::trace:
      input.trace = open_trace(path);
      break;
    case FileKind::log:
      input.log = open_log(path);
      break;
    case FileKind::recipe:
      input.recipe = open_recipe(path);
      break;
  }
  const Model& model = input.log ? input.log->model() : input.stream().model();
  std::vector<std::string> warnings = offset_warnings(model);
  if (input.trace)
    for (std::string& line : trace_warnings(*input.trace)) warnings.push_back(std::move(line));
  for (const std::string& line : warnings) std::cerr << "gdnsim: warning: " << path << ": " << line << "\n";
  return input;
}

void open_source(Input& input, const std::string& trace_path) {
  const LogHeader& header = input.log->header();
  require_trace_of_log(input, trace_path);
  if (header.source.starts_with("{")) {
    input.stream_of_log = make_recipe_stream(parse_recipe(header.source, input.path + ": source"));
    return;
  }
  auto trace = trace_path.empty() ? open_trace_of(input) : open_trace(trace_path);
  if (const std::string found = trace->source(); found != header.source)
    throw error(trace->path(), ": is not the trace that ", input.path, " was made from: expected ", header.source,
                ", found ", found, trace_path.empty() ? "; name it with --trace FILE" : "");
  input.stream_of_log = std::move(trace);
}

void require_trace_of_log(const Input& input, const std::string& trace_path) {
  if (trace_path.empty()) return;
  if (!input.log) throw error("--trace ", trace_path, ": says where a log's trace is, and ", input.path, " is no log");
  if (input.log->header().source.starts_with("{"))
    throw error("--trace ", trace_path, ": says where a log's trace is, and ", input.path, " is a recipe's log");
}

namespace {

/// The contract that a bundle (`pack`) was made under; nothing for other files.
std::optional<ContractSet> bundle_contract(const Input& input) {
  if (!input.trace) return std::nullopt;
  for (const auto& [key, text] : input.trace->provenance())
    if (key == kBundleContract) return contracts_from_text(text, input.path + ": provenance @" + key);
  return std::nullopt;
}

}  // namespace

NamedContracts named_contracts(const std::string& option, const Input& input) {
  if (option != "auto") return {load_contracts(option), "given by --contract " + option};
  if (input.log) return {input.log->header().contracts, "the log says so"};
  if (auto bundled = bundle_contract(input)) return {std::move(bundled), "the bundle says so"};
  return {};
}

void add_trace_option(CLI::App& command, std::string& trace) {
  command.add_option("--trace", trace, "the trace a log was made from (default: where the log says)")
      ->check(not_empty());
}

void RecordingOptions::add_to(CLI::App& command, const std::string& contract_means) {
  command.add_option("FILE", file, "a trace with recorded outputs, or a log")->required();
  command.add_option("--contract", contract, contract_means)->capture_default_str();
  add_trace_option(command, trace);
}

Input RecordingOptions::open() const {
  Input input = open_input(file);
  input.recording();  // a recipe is refused before anything else is looked at
  require_trace_of_log(input, trace);
  if (input.log) open_source(input, trace);
  return input;
}

std::string RecordingOptions::trace_words() const { return trace.empty() ? "" : " --trace " + shell_word(trace); }

std::string RecordingOptions::words(const Input& input, const ContractSet& used) const {
  std::string text = " " + shell_word(file);
  text += trace_words();
  const bool file_says = contract == "auto" && named_contracts(contract, input).contracts;
  if (!file_says) text += " --contract " + shell_word(contract == "auto" ? contract_name(used) : contract);
  return text;
}

std::string subject_of(const Input& input, Stream& stream, const Slice& slice) {
  std::ostringstream text;
  text << (input.log ? "log" : "trace") << ", layers " << layers_text(slice.layers) << " of " << stream.model().layers()
       << ", steps " << slice.first_step << ":" << slice.last_step << " of " << stream.steps() << pick_text(slice.pick)
       << ", " << stream.rows() << " rows; " << describe(stream.model());
  return text.str();
}

Progress::Progress(std::string what, const OutputOptions& output)
    : what_(std::move(what)), on_(!output.quiet && !output.no_progress && isatty(STDERR_FILENO) != 0), start_(now()) {}

Progress::~Progress() {
  if (shown_) std::cerr << "\r\033[K" << std::flush;
}

void Progress::update(std::int64_t done, std::int64_t total, std::uint64_t bytes) {
  if (!on_) return;
  const double time = now();
  if (time - last_ < 0.2 || time - start_ < 0.5) return;
  last_ = time;
  shown_ = true;
  const double rate = static_cast<double>(done) / (time - start_);
  std::array<char, 160> line{};
  std::snprintf(line.data(), line.size(), "\r\033[K%s: step %lld of %lld, %.0f steps/s, %.0f s left", what_.c_str(),
                static_cast<long long>(done), static_cast<long long>(total), rate,
                static_cast<double>(total - done) / rate);
  std::cerr << line.data();
  if (bytes > 0) std::cerr << ", " << bytes_text(bytes) << " written";
  std::cerr << std::flush;
}

void Progress::stage(const std::string& what) {
  if (!on_ || now() - start_ < 0.5) return;
  shown_ = true;
  std::cerr << "\r\033[K" << what_ << ": " << what << std::flush;
}

void say(const OutputOptions& output, const std::string& message) {
  if (!output.quiet) std::cerr << "gdnsim: " << message << "\n";
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> units{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) value /= 1024, ++unit;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text.data();
}

std::string shell_word(const std::string& text) {
  constexpr const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,+=@";
  if (text.starts_with("-")) return shell_word("./" + text);  // no option
  if (!text.empty() && text.find_first_not_of(plain) == std::string::npos) return text;
  if (printable(text) != text) return printf_word(text);
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace gdnsim::tools
