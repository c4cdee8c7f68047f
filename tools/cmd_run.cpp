// gdnsim run: drive a trace or a recipe through the layers and write the log.
#include <unistd.h>

#include <array>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <iostream>

#include "cli.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/record.hpp"
#include "gdnsim/simulator.hpp"
#include "gdnsim/version.hpp"
#include "pool_checks.hpp"

namespace gdnsim::tools {
namespace {

struct Options {
  std::string file, log, contract = "auto", state = "full", checkpoint = "none", taps;
  bool no_provenance = false, resume = false, act_faults = false;
  LogOptions log_options;
  PoolChecks checks;
  SliceOptions slice;
  BackendChoice backend;
  OutputOptions output;
};

TapSet parse_taps(const std::string& text) {
  if (text.empty()) return {Tap::conv_out, Tap::core_out, Tap::norm_out};
  TapSet taps;
  std::istringstream in(text);
  for (std::string name; std::getline(in, name, ',');) {
    const auto tap = tap_from(name);
    if (!tap || *tap == Tap::state || *tap == Tap::conv_state)
      throw error("--taps: expected names like conv_out,core_out,norm_out,q,u (states are kept by --state), found '",
                  name, "'");
    taps.add(*tap);
  }
  return taps;
}

ContractChoice choose(const Options& options, Input& input, Backend& backend, const Slice& slice) {
  if (options.contract != "auto")
    return {load_contracts(options.contract), "given by --contract " + options.contract, {}, {}};
  if (input.trace && input.trace->has_recording()) return choose_contract(*input.trace, *input.trace, backend, slice);
  return {contract_set("golden"), "auto: nothing was recorded, so our own reference", {}, {}};
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm fields{};
  gmtime_r(&now, &fields);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &fields);
  return text.data();
}

std::vector<std::pair<std::string, std::string>> provenance(const Options& options, const Input& input,
                                                            const Backend& backend, const std::string& chosen_by) {
  if (options.no_provenance) return {};
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  std::vector<std::pair<std::string, std::string>> words{{input.trace ? "trace" : "recipe", options.file},
                                                         {"host", host.data()},
                                                         {"time", utc_now()},
                                                         {"gdnsim", version()},
                                                         {"backend", backend.name()},
                                                         {"contract_chosen_by", chosen_by}};
  if (options.act_faults) words.emplace_back("faults", "acted out");
  return words;
}

/// While one lives, the first SIGINT or SIGTERM only asks the run to end after the step under way; a second one kills. What was
/// ignored when the program started (nohup) stays ignored.
class Interruption {
 public:
  Interruption() {
    asked_ = 0;
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      struct sigaction action = {};
      action.sa_handler = [](int number) { asked_ = number; };
      action.sa_flags = static_cast<int>(SA_RESETHAND);
      sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
    }
  }
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;
  ~Interruption() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }
  static bool asked() { return asked_ != 0; }
  static const char* name() { return asked_ == SIGINT ? "SIGINT" : "SIGTERM"; }

 private:
  static constexpr std::array<int, 2> kSignals{SIGINT, SIGTERM};
  static inline volatile std::sig_atomic_t asked_ = 0;
  std::array<struct sigaction, 2> before_{};
};

/// Hands the logged steps to the writer; earlier steps only carry the state.
class Recorder final : public Observer {
 public:
  Recorder(LogWriter& log, const Slice& slice, Progress& progress) : log_(log), slice_(slice), progress_(progress) {}
  void event_coming(const Event& event, int layer, Pool& pool) override { log_.event_coming(event, layer, pool); }
  void event_applied(const Event& event, int layer, Pool& pool) override { log_.event_applied(event, layer, pool); }
  bool looks_at(const ComingStep& coming, std::vector<Look>& looks) override { return log_.looks_at(coming, looks); }
  void before(std::int64_t step, int layer, const StepPlan& plan, Pool& pool) override {
    log_.before(step, layer, plan, pool);
  }
  void after(const StepView& view) override { log_.after(view); }
  void step_done(std::int64_t step) override {
    log_.step_done(step);
    whole_ = step + 1 == slice_.last_step;
    progress_.update(step + 1, slice_.last_step, log_.bytes_written());
  }
  bool enough() const override { return Interruption::asked(); }
  bool whole() const { return whole_; }  // the last step is done

 private:
  LogWriter& log_;
  const Slice& slice_;
  Progress& progress_;
  bool whole_ = false;
};

/// An interrupted log need not be thrown away.
void offer_resume(const Options& options) {
  if (options.resume || options.output.force || !std::filesystem::is_regular_file(options.log)) return;
  std::int64_t complete = 0, declared = 0;
  try {
    const auto log = open_log(options.log);
    complete = log->steps(), declared = log->declared_steps();
  } catch (const Error&) {
    return;  // not a log: `create_log` says what is there
  }
  if (complete < declared)
    throw error(options.log, ": is incomplete (", complete, " of ", declared,
                " steps); --resume goes on with it, --force replaces it");
}

LogHeader make_header(const Options& options, Stream& stream, const Slice& slice, const ContractSet& contracts) {
  LogHeader header;
  header.model = stream.model();
  header.layers = slice.layers;
  header.contracts = contracts;
  header.source = stream.source();
  header.first_step = slice.first_step;
  header.steps = slice.last_step - slice.first_step;
  header.rows = stream.rows();
  header.taps = parse_taps(options.taps);
  header.state = state_policy_from(options.state);
  header.checkpoint_every = checkpoint_every_from(options.checkpoint);
  if (header.checkpoint_every > 0) header.checkpoint_blocks = named_blocks(stream, slice.last_step);
  for (std::int64_t step = slice.first_step; step < slice.last_step; ++step) header.plans.push_back(stream.plan(step));
  header.events = events_of(stream, slice.first_step, slice.last_step);
  return header;
}

void print_result(const Options& options, const LogHeader& header, const std::array<std::uint64_t, 2>& chain,
                  const std::string& chosen_by, const std::string& backend) {
  std::array<char, 40> digest{};
  std::snprintf(digest.data(), digest.size(), "%016llx%016llx", static_cast<unsigned long long>(chain[1]),
                static_cast<unsigned long long>(chain[0]));
  if (!options.output.json_on_stdout())
    std::cout << options.log << ": " << header.steps << " steps, " << header.layers.size() << " layers, contract "
              << header.contracts.decode.name << ", digest " << digest.data() << "\n";
  options.output.write_json({{"schema", "gdnsim.run/1"},
                             {"log", options.log},
                             {"steps", header.steps},
                             {"layers", header.layers},
                             {"contract", header.contracts.decode.name},
                             {"chosen_by", chosen_by},
                             {"backend", backend},
                             {"bytes", log_size(header)},
                             {"digest", digest.data()}});
}

/// How the steps are run: as they should be, or with the recipe's faults acted out.
RunSteps runner(const Options& options) {
  if (!options.act_faults) return simulate;
  if (!options.checks.any()) throw error("--act-faults: expected --poison or --audit to watch for what they do");
  if (options.resume) throw error("--act-faults: expected a run from the start, found --resume");
  if (kind_of_file(options.file) != FileKind::recipe)
    throw error(options.file, ": --act-faults: expected a recipe (JSON, gdnsim.recipe/1)");
  const std::vector<Fault> faults = load_recipe(options.file).faults;
  if (faults.empty()) throw error(options.file, ": --act-faults: expected faults in the recipe, found none");
  return [faults](const Simulation& simulation, Pool& pool, Observer& observer) {
    simulate_with_faults(simulation, faults, pool, observer);
  };
}

int run(const Options& options) {
  options.output.check_target({options.file, options.log, options.contract});
  require_apart(options.log, options.file);
  const RunSteps run_steps = runner(options);
  Input input = open_input(options.file);
  if (input.log)
    throw error(options.file, ": is a log; run takes a trace or a recipe ('gdnsim replay' runs a log again)");
  Stream& stream = input.stream();
  const Slice slice = resolved(options.slice.parsed(), whole_of(stream), options.file);
  const ChosenBackend chosen = options.backend.choose();
  const ContractChoice contract = choose(options, input, *chosen.backend, slice);
  LogHeader header = make_header(options, stream, slice, contract.contracts);
  header.provenance = provenance(options, input, *chosen.backend, contract.chosen_by);
  require_defined(contract.contracts.decode, stream.model());
  require_defined(contract.contracts.mixed, stream.model());
  offer_resume(options);
  say(options.output, "backend " + chosen.reason);
  say(options.output, "contract " + contract.contracts.decode.name + ", " + contract.chosen_by);
  say(options.output, options.log + " will take " + bytes_text(log_size(header)));

  LogOptions log_options = options.log_options;
  log_options.force = options.output.force;
  Simulation simulation{stream, *chosen.backend, contract.contracts, slice.layers, slice.last_step, header.taps};
  require_launch_start(stream, slice.first_step, options.file);
  if (options.checks.poison && reports_poison(simulation, options.file, options.output, run_steps)) return kDiverged;
  const auto pool = chosen.backend->make_pool(stream.model(), slice.layers);
  const bool resume = options.resume && std::filesystem::exists(options.log);
  const Interruption interruption;
  const auto log = resume ? resume_log(options.log, header, log_options) : create_log(options.log, header, log_options);
  simulation.first_step = log->start(*pool);
  if (resume)
    say(options.output, options.log + ": " + std::to_string(log->committed()) + " of " + std::to_string(header.steps) +
                            " steps are complete; computing from step " + std::to_string(simulation.first_step));
  Progress progress("run", options.output);
  Recorder recorder(*log, slice, progress);
  std::optional<AuditObserver> audit;
  if (options.checks.audit > 0) audit.emplace(simulation, options.checks.audit, recorder);
  run_steps(simulation, *pool, audit ? static_cast<Observer&>(*audit) : recorder);
  log->close();
  if (audit && reports_strays(audit->found(), options.file, options.output)) return kDiverged;
  if (!recorder.whole())
    throw error(options.log, ": interrupted by ", Interruption::name(), ": ", log->committed(), " of ", header.steps,
                " steps are complete; --resume goes on with it");
  print_result(options, header, log->chain(), contract.chosen_by, chosen.backend->name());
  return kMatch;
}

}  // namespace

void add_run(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  CLI::App* command = root.add_subcommand("run", "drive a trace or a recipe through the layers and write the log");
  command->footer("Example: gdnsim run traces/recipes/small_k64.json -o small.log.h5 --contract triton-sm90");
  command->add_option("TRACE", options->file, "a trace, or a recipe (JSON)")->required();
  command->add_option("-o,--output", options->log, "the log to write")
      ->required()
      ->type_name("LOG")
      ->check(not_empty());
  command->add_option("--contract", options->contract, "auto, a preset's name or a contract file")
      ->capture_default_str();
  command->add_option("--state", options->state, "states to keep: full, every:N or digest")->capture_default_str();
  command
      ->add_option("--checkpoint", options->checkpoint,
                   "whole pools to keep, for --resume and bisect to start from: none or every:M")
      ->capture_default_str();
  command->add_option("--taps", options->taps, "values to keep (default conv_out,core_out,norm_out)")
      ->type_name("LIST")
      ->check(not_empty());
  command
      ->add_option("--sync", options->log_options.sync,
                   "fdatasync every N steps (against power loss; a kill needs none)")
      ->check(CLI::Range(0, 1 << 30));
  command->add_flag("--resume", options->resume,
                    "go on with an interrupted log, from its last checkpoint or from the start: what is recomputed is "
                    "compared, the file ends in the same bytes");
  options->checks.add_to(*command);
  command->add_flag("--act-faults", options->act_faults,
                    "act the recipe's faults out, as synth --record does: what --poison and --audit see of them");
  command->add_flag("--no-provenance", options->no_provenance,
                    "leave out host, time and path: equal runs write equal bytes");
  options->slice.add_to(*command, false);  // a log holds whole steps
  options->backend.add_to(*command);
  options->output.add_to(*command);
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
