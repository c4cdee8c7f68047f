// gdnsim drift: how far two runs over the same stream part, over a sweep.
#include <filesystem>
#include <iostream>

#include "cli.hpp"
#include "gdnsim/drift.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/regular_file.hpp"
#include "mpi_ranks.hpp"

namespace gdnsim::tools {
namespace {

struct Options {
  std::string file, result, parts, shard, csv;
  std::vector<std::string> merge;
  bool keep_parts = false;
  BackendChoice backend;
  OutputOptions output;
};

/// "2/8"
void parse_shard(const std::string& text, DriftOptions& drift) {
  if (text.empty()) return;
  std::istringstream in(text);
  char slash = 0;
  const bool read = static_cast<bool>(in >> drift.shard >> slash >> drift.shards) && slash == '/' && in.peek() == EOF;
  if (!read || drift.shards < 1 || drift.shards > 1 << 20 || drift.shard < 0 || drift.shard >= drift.shards)
    throw error("--shard: expected I/N with I from 0 to N - 1, found '", text, "'");
}

void show(const Options& options, DriftResult& result) {
  if (!options.csv.empty()) write_output(options.csv, drift_csv(result));
  if (!options.output.json_on_stdout()) std::cout << drift_table(result);
  if (!options.output.html.empty()) write_output(options.output.html, drift_html(result));
  options.output.write_json(drift_json(result));
}

void check_targets(const Options& options) {
  std::vector<std::string> others{options.file};
  if (!options.result.empty()) others.push_back(options.result);
  if (!options.csv.empty()) {
    options.output.check_file("--csv", options.csv, others);
    others.push_back(options.csv);
  }
  options.output.check_target(others);
}

/// What a result that is there already comes down to.
int show_again(const Options& options) {
  require_alone("the table of a result");
  if (!std::filesystem::exists(options.file))
    throw error(options.file, ": cannot be opened: No such file or directory");
  if (!options.result.empty() || !options.merge.empty() || !options.shard.empty())
    throw error(options.file, ": expected a sweep (JSON) for -o, --shard and --merge");
  show(options, *open_drift(options.file));
  return kMatch;
}

/// Ranks are shards of one run: the first one goes on to write the result, when all are done.
bool compute_with(Spread& spread, const Options& options, const DriftSweep& sweep, const std::string& parts,
                  DriftOptions drift) {
  drift.shard = spread.rank(), drift.shards = spread.ranks();
  {
    Progress progress("drift, rank 0", options.output);
    drift.progress = [&](std::int64_t done, std::int64_t total) { progress.update(done, total); };
    run_drift(sweep, parts, drift);
  }
  spread.exchange("");
  return spread.rank() == 0;
}

/// False when the result is not to be written here: other shards are still missing.
bool compute(Options options, const DriftSweep& sweep, const std::string& parts) {
  share_machine(options.backend);
  DriftOptions drift;
  drift.backend = options.backend.name;
  drift.backend_options = options.backend.options;
  parse_shard(options.shard, drift);
  if (const auto spread = join_ranks()) return compute_with(*spread, options, sweep, parts, drift);
  {
    Progress progress("drift", options.output);
    drift.progress = [&](std::int64_t done, std::int64_t total) { progress.update(done, total); };
    run_drift(sweep, parts, drift);
  }
  if (options.shard.empty()) return true;
  const std::size_t missing = missing_units(sweep, {parts}).size();
  say(options.output, parts + ": shard " + options.shard + " is done; " + std::to_string(missing) + " of " +
                          std::to_string(sweep.units().size()) + " units are missing here" +
                          (missing > 0 ? "; run the other shards, then --merge their folders" : ""));
  return false;
}

/// The result of this sweep is not computed again; what a kill left beside it goes. Any other file stays what it is.
int show_finished(const Options& options, const DriftSweep& sweep, const std::string& parts) {
  std::string digest;
  try {
    digest = open_drift(options.result)->digest();
  } catch (const Error&) {  // of another kind
  }
  if (digest != sweep.digest) throw error(options.result, ": exists already; --force replaces it");
  if (launched().rank > 0) return kMatch;
  say(options.output, options.result + ": is the result of this sweep already; --force computes it again");
  if (!options.keep_parts) remove_parts(sweep, parts);
  show(options, *open_drift(options.result));
  return kMatch;
}

int drift(Options options) {
  if (const Launched here = launched(); here.ranks > 1) {
    if (!options.shard.empty() || !options.merge.empty())
      throw error("--shard, --merge: expected one process, found ", here.ranks);
    if (here.rank > 0) options.output.quiet = options.output.no_progress = true;
  }
  check_targets(options);
  refuse_irregular(options.file);
  if (!is_recipe(options.file)) return show_again(options);
  if (options.result.empty()) throw error("-o: expected the result to write");
  DriftOptions unused;
  parse_shard(options.shard, unused);  // said before the sweep's traces are read
  require_apart(options.result, options.file);
  const DriftSweep sweep = load_sweep(options.file);
  const std::string parts = options.parts.empty() ? options.result + ".parts" : options.parts;
  say(options.output, std::to_string(sweep.cells.size()) + " cells, " + std::to_string(sweep.seeds.size()) +
                          " seeds, " + std::to_string(sweep.units().size()) + " units of " +
                          std::to_string(sweep.steps) + " steps; sweep " + sweep.digest);
  if (!options.output.force && std::filesystem::exists(options.result)) return show_finished(options, sweep, parts);
  if (options.merge.empty() && !compute(options, sweep, parts)) return kMatch;
  write_drift(sweep, options.merge.empty() ? std::vector<std::string>{parts} : options.merge, options.result,
              options.output.force);
  if (options.merge.empty() && !options.keep_parts) remove_parts(sweep, parts);
  show(options, *open_drift(options.result));
  return kMatch;
}

}  // namespace

void add_drift(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  options->backend.name = "golden";
  CLI::App* command =
      root.add_subcommand("drift", "how far two runs over the same stream part, step by step, over a sweep");
  command->footer(
      "The same command again goes on where it was stopped. Give it a result in place of a sweep to see its table "
      "again.\n"
      "Example: gdnsim drift traces/recipes/drift/gallery.json -o gallery.h5 --csv gallery.csv");
  command->add_option("SWEEP", options->file, "a sweep (JSON, docs/drift.md), or a result")->required();
  command->add_option("-o,--output", options->result, "the result to write (HDF5)")
      ->type_name("FILE")
      ->check(not_empty());
  command->add_option("--csv", options->csv, "write a line for each cell to FILE")
      ->type_name("FILE")
      ->check(not_empty());
  auto* parts = command->add_option("--parts", options->parts, "folder of finished units (default: FILE.parts)")
                    ->type_name("DIR")
                    ->check(not_empty());
  command->add_flag("--keep-parts", options->keep_parts, "leave that folder there");
  auto* shard = command
                    ->add_option("--shard", options->shard,
                                 "compute units I, I+N, I+2N, ... into the folder and stop: for batch systems")
                    ->type_name("I/N")
                    ->check(not_empty());
  command->add_option("--merge", options->merge, "write the result from these folders of parts; nothing is computed")
      ->type_name("DIR")
      ->check(not_empty())
      ->excludes(shard)
      ->excludes(parts);
  options->backend.add_to(*command);
  options->output.add_to(*command);
  options->output.add_html_to(*command);
  command->callback([options, &job] { job = [options] { return drift(*options); }; });
}

}  // namespace gdnsim::tools
