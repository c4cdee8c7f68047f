// gdnsim bisect: the first step and layer in which two recordings part, or one parts from a fresh run, or a user's test fails.
#include <iostream>

#include "bisect_session.hpp"
#include "cli.hpp"
#include "gdnsim/bisect.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim::tools {
namespace {

struct Options {
  std::string a, b, contract = "auto", trace, check, session;
  SliceOptions slice;
  BackendChoice backend;
  OutputOptions output;
};

std::string place_text(const Divergence& d) {
  std::ostringstream text;
  text << "step " << d.step << ", layer " << d.layer << " (model layer " << d.layer_id << "), tap " << name_of(d.tap);
  if (d.row >= 0) text << ", row " << d.row << ", sequence " << d.sequence;
  if (d.block >= 0) text << ", block " << d.block;
  if (d.head >= 0) text << ", head " << d.head;
  if (d.element >= 0) text << ", element " << d.element;
  if (d.kind != DiffClass::digest && d.element >= 0)
    text << ": " << hex_text(d.type, d.want) << " and " << hex_text(d.type, d.got);
  return text.str();
}

std::string share_text(const BisectResult& result) {
  const double share = result.layer_steps_all == 0 ? 0
                                                   : 100.0 * static_cast<double>(result.layer_steps_run) /
                                                         static_cast<double>(result.layer_steps_all);
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(), "%llu of %llu layer steps (%.2f %%)",
                static_cast<unsigned long long>(result.layer_steps_run),
                static_cast<unsigned long long>(result.layer_steps_all), share);
  return text.data();
}

void print(const Options& options, const BisectResult& result, const std::string& verdict) {
  std::cout << "bisect " << printable(options.a) << (options.b.empty() ? "" : " " + printable(options.b)) << "\n";
  std::cout << "searched  layers " << layers_text(result.slice.layers) << ", steps " << result.slice.first_step << ":"
            << result.slice.last_step << pick_text(result.slice.pick) << ", " << result.how << "\n";
  std::size_t parted = 0;
  for (const LayerPart& part : result.layers) parted += part.first.has_value();
  std::cout << "layers    " << parted << " of " << result.layers.size() << " part\n";
  std::size_t shown = 0;
  for (const LayerPart& part : result.layers)
    if (part.first && shown++ < 8)
      std::cout << "          layer " << part.layer << " from step " << part.first->step << " on, "
                << name_of(part.first->tap) << "\n";
  if (parted > shown) std::cout << "          and " << parted - shown << " more (--json has all)\n";
  if (result.first) std::cout << "first     " << place_text(*result.first) << "\n";
  for (const Recomputed& run : result.recomputed)
    std::cout << "run again " << run.which << ", layer " << result.first->layer << ", steps " << run.from << ":"
              << run.to << ": "
              << (run.first ? "differs from a fresh run, first at " + place_text(*run.first)
                            : "agrees with a fresh run")
              << "\n";
  std::cout << "work      " << result.records_read << " records read, " << share_text(result) << " recomputed\n";
  for (const std::string& note : result.notes) std::cout << "note      " << printable(note) << "\n";
  if (!result.inconclusive_because.empty()) std::cout << "because   " << printable(result.inconclusive_because) << "\n";
  std::cout << verdict << "\n";
}

nlohmann::ordered_json part_json(const std::optional<Divergence>& d) {
  return d ? divergence_json(*d) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json to_json(const Options& options, const BisectResult& result) {
  nlohmann::ordered_json j{{"schema", "gdnsim.bisect/1"},
                           {"files", options.b.empty() ? std::vector{options.a} : std::vector{options.a, options.b}},
                           {"verdict", name_of(result.verdict)},
                           {"how", result.how},
                           {"first", part_json(result.first)}};
  if (!result.inconclusive_because.empty()) j["because"] = result.inconclusive_because;
  j["layers"] = nlohmann::ordered_json::array();
  for (const LayerPart& part : result.layers)
    j["layers"].push_back({{"layer", part.layer}, {"first", part_json(part.first)}});
  j["recomputed"] = nlohmann::ordered_json::array();
  for (const Recomputed& run : result.recomputed)
    j["recomputed"].push_back(
        {{"which", run.which}, {"from", run.from}, {"to", run.to}, {"first", part_json(run.first)}});
  j["records_read"] = result.records_read;
  j["layer_steps_run"] = result.layer_steps_run;
  j["layer_steps_all"] = result.layer_steps_all;
  j["notes"] = result.notes;
  return j;
}

/// Which of two logs does a fresh run of the layer agree with? Only where what the log was made from is at hand.
void run_again(const Options& options, Input& input, const std::string& which, Backend& backend, BisectResult& result) {
  if (!input.log || !result.first) return;
  const Divergence& first = *result.first;
  try {
    open_source(input, which == "A" ? options.trace : "");
    const int layer = first.layer;
    const Recomputed run = recompute(input.stream(), *input.log, which, layer, first.step, backend,
                                     input.log->header().contracts, result.slice.pick);
    result.layer_steps_run += static_cast<std::uint64_t>(run.to - run.from);
    result.recomputed.push_back(run);
  } catch (const Error& problem) {
    result.notes.push_back(which + " was not run again: " + problem.what());
  }
}

ContractSet contracts_for(const Options& options, Input& input, Backend& backend, const Slice& slice) {
  if (auto named = named_contracts(options.contract, input).contracts) return *std::move(named);
  return choose_contract(input.stream(), input.recording(), backend, slice).contracts;
}

/// Steps that an interrupted log lacks were not shown to match.
void note_incomplete(const Input& input, const Slice& asked, BisectResult& result) {
  if (!input.log || input.log->steps() == input.log->declared_steps() || asked.last_step >= 0) return;
  if (result.verdict != Verdict::match) return;
  result.verdict = Verdict::inconclusive;
  result.inconclusive_because = "the log is incomplete: " + std::to_string(input.log->steps()) + " of " +
                                std::to_string(input.log->declared_steps()) + " steps; next: " + input.look_again();
}

BisectResult search(const Options& options, Backend& backend) {
  Progress progress("bisect", options.output);
  BisectOptions bisect_options;
  bisect_options.slice = options.slice.parsed();
  bisect_options.progress = [&](std::int64_t done, std::int64_t total) { progress.update(done, total); };
  Input a = open_input(options.a);
  require_trace_of_log(a, options.trace);
  if (options.b.empty()) {
    if (a.log) open_source(a, options.trace);
    const Slice slice = resolved(bisect_options.slice, whole_of(a.recording()), options.a);
    BisectResult result = bisect_against_run(a.stream(), a.recording(), backend,
                                             contracts_for(options, a, backend, slice), bisect_options);
    note_incomplete(a, bisect_options.slice, result);
    return result;
  }
  Input b = open_input(options.b);
  BisectResult result = bisect(a.recording(), b.recording(), bisect_options);
  run_again(options, a, "A", backend, result);
  run_again(options, b, "B", backend, result);
  return result;
}

/// An option that says nothing in this kind of search is refused, not passed over.
void check_options(const Options& options) {
  if (options.check.empty()) {
    if (!options.session.empty()) throw error("--session: keeps the answers of --check, which was not given");
    if (!options.b.empty() && options.contract != "auto")
      throw error("--contract: is that of a fresh run, which two files are not compared with");
    return;
  }
  if (!options.b.empty()) throw error("--check: takes one file, found two");
  if (!options.slice.layers.empty() || !options.slice.row_words().empty())
    throw error("--check: the command is run for whole steps: of a slice it takes --steps alone");
  if (options.contract != "auto" || !options.trace.empty())
    throw error("--check: the command is run instead of ours: --contract and --trace say nothing to it");
}

int run(const Options& options) {
  options.output.check_target({options.a, options.b, options.trace, options.session});
  check_options(options);
  if (!options.check.empty())
    return run_check({options.a, options.check, options.session, options.slice, options.output});
  const ChosenBackend chosen = options.backend.choose();
  const BisectResult result = search(options, *chosen.backend);
  std::ostringstream verdict;
  verdict << "verdict: " << name_of(result.verdict) << ", compared " << result.layers.size() << " layers, differing "
          << std::ranges::count_if(result.layers, [](const LayerPart& part) { return part.first.has_value(); });
  if (options.output.json_on_stdout())
    say(options.output, verdict.str());
  else
    print(options, result, verdict.str());
  options.output.write_json(to_json(options, result));
  return exit_code(result.verdict);
}

}  // namespace

void add_bisect(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  options->backend.name = "golden";
  CLI::App* command = root.add_subcommand(
      "bisect", "find the first step and layer in which two recordings part, or one parts from a fresh run");
  command->footer(
      "Example: gdnsim bisect rollout.log.h5 trainer.log.h5\n"
      "Example: gdnsim bisect rollout.h5 --check './decode_ok.sh {step}' --session search.json");
  command->add_option("A", options->a, "a log or trace")->required();
  command->add_option("B", options->b, "another of the same batch; without it A is compared with a fresh run");
  command->add_option("--contract", options->contract, "of the fresh run: auto, a preset's name or a contract file")
      ->capture_default_str();
  command->add_option("--trace", options->trace, "the trace that log A was made from (default: where the log says)")
      ->check(not_empty());
  command
      ->add_option("--check", options->check,
                   "run CMD for single steps instead: {step} is replaced; exit 0 good, 1 to 124 bad, 125 skip")
      ->type_name("CMD")
      ->check(not_empty());
  command
      ->add_option("--session", options->session,
                   "with --check: keeps every answer, so that an interrupted search goes on")
      ->type_name("FILE")
      ->check(not_empty());
  options->slice.add_to(*command);
  options->backend.add_to(*command);
  options->output.add_to(*command);
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
