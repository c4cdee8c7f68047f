// gdnsim synth: a synthetic trace from a recipe; with --record also what a contract makes of it.
#include <charconv>
#include <iostream>

#include "cli.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/record.hpp"

namespace gdnsim::tools {
namespace {

struct Options {
  std::string recipe, trace, contract = "golden";
  std::string seed;
  std::int64_t snapshots = 0;
  bool record = false;
  BackendChoice backend;
  OutputOptions output;
};

void record(const Options& options, const Recipe& recipe, Stream& stream, Progress& progress) {
  const ContractSet contracts = load_contracts(options.contract);
  const ChosenBackend chosen = options.backend.choose();
  RecordOptions record;
  record.snapshot_every = options.snapshots;
  record.force = options.output.force;
  record.faults = recipe.faults;
  record.provenance = {{"engine", "gdnsim synth"}, {"contract", contracts.decode.name}};
  record.progress = [&](std::int64_t done, std::int64_t total) { progress.update(done, total); };
  record_trace(stream, *chosen.backend, contracts, options.trace, record);
}

std::uint64_t parse_seed(const std::string& text) {
  std::uint64_t seed = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (failed != std::errc() || end != text.data() + text.size())
    throw error("--seed: expected 0 to 18446744073709551615, found '", text, "'");
  return seed;
}

int run(const Options& options) {
  options.output.check_target({options.recipe, options.trace, options.contract});
  require_apart(options.trace, options.recipe);
  if (kind_of_file(options.recipe) != FileKind::recipe)
    throw error(options.recipe, ": expected a recipe (JSON, gdnsim.recipe/1)");
  Recipe recipe = load_recipe(options.recipe);
  if (!options.seed.empty()) recipe.seed = parse_seed(options.seed);
  const auto stream = make_recipe_stream(recipe);
  {
    Progress progress("synth", options.output);
    if (options.record)
      record(options, recipe, *stream, progress);
    else
      write_trace(*stream, options.trace, options.output.force, {},
                  [&](std::int64_t done) { progress.update(done, stream->steps()); });
  }
  const std::string digest = open_trace(options.trace)->source();
  if (!options.output.json_on_stdout())
    std::cout << options.trace << ": " << stream->steps() << " steps, " << stream->rows() << " rows, "
              << stream->model().layers() << " layers, " << digest << "\n";
  options.output.write_json({{"schema", "gdnsim.synth/1"},
                             {"trace", options.trace},
                             {"seed", recipe.seed},
                             {"steps", stream->steps()},
                             {"source", digest}});
  return kMatch;
}

}  // namespace

void add_synth(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      root.add_subcommand("synth", "write a synthetic trace from a recipe: the same bytes on every machine");
  command->footer("Example: gdnsim synth traces/recipes/tiny.json -o tiny.h5 --seed 7 --record --contract golden");
  command->add_option("RECIPE", options->recipe, "a recipe (JSON)")->required();
  command->add_option("-o,--output", options->trace, "the trace to write")
      ->required()
      ->type_name("TRACE")
      ->check(not_empty());
  command->add_option("--seed", options->seed, "in place of the recipe's seed")->type_name("N")->check(not_empty());
  command->add_flag("--record", options->record,
                    "also run it and record outputs and states, so that it can be replayed");
  command->add_option("--contract", options->contract, "contract to record under")->capture_default_str();
  command->add_option("--snapshots", options->snapshots, "record all blocks every N steps (default: after the last)")
      ->check(CLI::Range(1, 1 << 30))
      ->type_name("N");
  options->backend.add_to(*command);
  options->output.add_to(*command);
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
