#include "bisect_session.hpp"

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "gdnsim/bisect.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim::tools {
namespace {

using Json = nlohmann::ordered_json;

/// Every answer so far, on disk before the next question is asked.
class Session {
 public:
  Session(const CheckOptions& options, std::int64_t first, std::int64_t last) : path_(options.session) {
    state_ = {{"schema", "gdnsim.bisect-session/1"},
              {"file", options.file},
              {"command", options.command},
              {"steps", {first, last}},
              {"answers", Json::object()}};
    if (!path_.empty() && std::filesystem::exists(path_)) read();
  }

  /// The answer to a step, when it was asked before: an exit status.
  std::optional<int> known(std::int64_t step) const {
    const auto found = state_["answers"].find(std::to_string(step));
    return found == state_["answers"].end() ? std::nullopt : std::optional<int>(found->get<int>());
  }

  void keep(std::int64_t step, int status) {
    state_["answers"][std::to_string(step)] = status;
    if (!path_.empty()) write_output(path_, state_.dump(2) + "\n");
  }

 private:
  void read() {
    std::ifstream file(path_);
    const Json found = Json::parse(file, nullptr, false);
    if (found.is_discarded() || !found.is_object() || found.value("schema", "") != state_["schema"])
      throw error(path_, ": expected a session of bisect --check (JSON, gdnsim.bisect-session/1)");
    for (const char* key : {"file", "command", "steps"})
      if (!found.contains(key) || found[key] != state_[key])
        throw error(path_, ": ", key, ": the session is of another search; expected ", state_[key].dump(), ", found ",
                    found.contains(key) ? found[key].dump() : "nothing");
    if (!found.contains("answers") || !found["answers"].is_object())
      throw error(path_, ": answers: expected an object");
    for (const auto& [step, status] : found["answers"].items())
      if (!status.is_number_integer()) throw error(path_, ": answers: step ", step, ": expected an exit status");
    state_ = found;
  }

  const std::string path_;
  Json state_;
};

std::string with_step(std::string command, std::int64_t step) {
  for (std::size_t at; (at = command.find("{step}")) != std::string::npos;)
    command.replace(at, 6, std::to_string(step));
  return command;
}

int exit_status(const CheckOptions& options, std::int64_t step) {
  ::setenv("GDNSIM_STEP", std::to_string(step).c_str(), 1);
  ::setenv("GDNSIM_FILE", options.file.c_str(), 1);
  std::cout.flush();
  const int status = std::system(with_step(options.command, step).c_str());
  if (status == -1) throw error("--check: the command could not be started");
  if (WIFSIGNALED(status))
    throw error("--check: step ", step, ": the command was killed by signal ", WTERMSIG(status),
                "; the session keeps the answers before it");
  const int code = WEXITSTATUS(status);
  if (code >= 128 || code == 126 || code == 127)
    throw error("--check: step ", step, ": the command exited with ", code,
                ", which is neither good (0) nor bad (1 to 124) nor skip (125): the search stops");
  return code;
}

CheckOutcome outcome_of(int status) {
  return status == 0 ? CheckOutcome::good : status == 125 ? CheckOutcome::skip : CheckOutcome::bad;
}

}  // namespace

int run_check(const CheckOptions& options) {
  Input input = open_input(options.file);
  const Slice whole = input.kind == FileKind::recipe ? whole_of(input.stream()) : whole_of(input.recording());
  const Slice slice = resolved(options.slice.parsed(), whole, options.file);
  Session session(options, slice.first_step, slice.last_step);
  std::int64_t asked = 0;
  const auto test = [&](std::int64_t step) {
    if (const auto known = session.known(step)) return outcome_of(*known);
    ++asked;
    const int status = exit_status(options, step);
    session.keep(step, status);
    say(options.output, "step " + std::to_string(step) + ": " +
                            (status == 0     ? "good"
                             : status == 125 ? "skipped"
                                             : "bad"));
    return outcome_of(status);
  };
  const CheckResult found = bisect_check(slice.first_step, slice.last_step, test);
  const bool all_skipped = !found.first_bad && found.last_good < 0;
  const char* verdict = found.first_bad ? "diverged" : all_skipped ? "inconclusive" : "match";
  Json j{{"schema", "gdnsim.bisect/1"},  {"files", {options.file}},
         {"verdict", verdict},           {"first_bad", found.first_bad ? Json(*found.first_bad) : Json(nullptr)},
         {"last_good", found.last_good}, {"asked", asked},
         {"tested", found.tested}};
  if (!options.output.json_on_stdout()) {
    if (found.first_bad) std::cout << "first bad " << *found.first_bad << "\n";
    const std::int64_t before = found.last_good < 0 ? slice.first_step - 1 : found.last_good;
    if (found.first_bad && *found.first_bad - before > 1)
      std::cout << "note      steps " << before + 1 << " to " << *found.first_bad - 1
                << " were skipped: the first bad one may be among them\n";
    std::cout << "work      " << asked << " runs of the command for " << slice.last_step - slice.first_step
              << " steps\nverdict: " << verdict << ", tested " << found.tested << " steps\n";
  }
  options.output.write_json(j);
  return found.first_bad ? kDiverged : all_skipped ? kFailed : kMatch;
}

}  // namespace gdnsim::tools
