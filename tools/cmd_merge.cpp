// gdnsim merge, gdnsim split: the tensor-parallel ranks of one rollout as one trace, and back.
#include <filesystem>
#include <iostream>

#include "cli.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/ranks.hpp"

namespace gdnsim::tools {
namespace {

struct Options {
  std::vector<std::string> inputs;
  std::string output_path;
  int ranks = 0;
  OutputOptions output;
};

std::string heads_text(const Model& model) {
  return "H " + std::to_string(model.H) + ", HV " + std::to_string(model.HV);
}

/// "run.h5" -> "run.rank0.h5"
std::vector<std::string> rank_paths(const std::string& path, int ranks) {
  const std::filesystem::path whole(path);
  std::vector<std::string> paths;
  for (int rank = 0; rank < ranks; ++rank) {
    std::filesystem::path own = whole.parent_path() / whole.stem();
    own += ".rank" + std::to_string(rank) + whole.extension().string();
    paths.push_back(own.string());
  }
  return paths;
}

RankOptions rank_options(const Options& options, Progress& progress) {
  RankOptions ranks;
  ranks.force = options.output.force;
  ranks.progress = [&](std::int64_t done, std::int64_t total) { progress.update(done, total); };
  return ranks;
}

int merge(const Options& options) {
  options.output.check_target(options.inputs);
  for (const std::string& input : options.inputs) require_apart(options.output_path, input);
  for (auto input = options.inputs.begin(); input != options.inputs.end(); ++input)
    for (auto other = options.inputs.begin(); other != input; ++other)
      if (same_file(*input, *other)) throw error(*input, ": is given twice; each rank has a trace of its own");
  if (options.inputs.size() < 2) throw error("merge: expected the traces of two or more ranks, found one");
  {
    Progress progress("merge", options.output);
    merge_ranks(options.inputs, options.output_path, rank_options(options, progress));
  }
  const auto trace = open_trace(options.output_path);
  if (!options.output.json_on_stdout())
    std::cout << options.output_path << ": " << options.inputs.size() << " ranks, " << heads_text(trace->model())
              << ", " << trace->steps() << " steps, " << trace->source() << "\n";
  options.output.write_json({{"schema", "gdnsim.merge/1"},
                             {"trace", options.output_path},
                             {"ranks", options.inputs},
                             {"source", trace->source()}});
  return kMatch;
}

int split(const Options& options) {
  const std::string& whole = options.inputs.front();
  options.output.check_target(options.inputs);
  const std::vector<std::string> paths = rank_paths(options.output_path, options.ranks);
  for (const std::string& path : paths) {
    require_apart(path, whole);
    if (!options.output.force && std::filesystem::exists(path))
      throw error(path, ": already exists (--force replaces it)");
  }
  {
    Progress progress("split", options.output);
    split_ranks(whole, paths, rank_options(options, progress));
  }
  if (!options.output.json_on_stdout())
    for (const std::string& path : paths) std::cout << path << ": " << heads_text(open_trace(path)->model()) << "\n";
  options.output.write_json({{"schema", "gdnsim.split/1"}, {"trace", whole}, {"ranks", paths}});
  return kMatch;
}

}  // namespace

void add_merge(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      root.add_subcommand("merge", "the traces of a rollout's tensor-parallel ranks as one of all heads");
  command->footer(
      "Ranks are put in the order that the files name (/provenance@tp_rank); where none does, as they are given.\n"
      "Example: gdnsim merge run.rank0.h5 run.rank1.h5 -o run.h5");
  command->add_option("RANK", options->inputs, "one trace a rank")->required();
  command->add_option("-o,--output", options->output_path, "the trace to write")
      ->required()
      ->type_name("TRACE")
      ->check(not_empty());
  options->output.add_to(*command);
  command->callback([options, &job] { job = [options] { return merge(*options); }; });
}

void add_split(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  CLI::App* command = root.add_subcommand("split", "a trace as those of tensor-parallel ranks");
  command->footer("Example: gdnsim split run.h5 --ranks 2 -o run.h5    (writes run.rank0.h5 and run.rank1.h5)");
  command->add_option("TRACE", options->inputs, "the trace of all heads")->required()->expected(1);
  command->add_option("--ranks", options->ranks, "how many; the key heads are divided among them")
      ->required()
      ->check(CLI::Range(2, 4096))
      ->type_name("N");
  command->add_option("-o,--output", options->output_path, "what the ranks' names are made from")
      ->required()
      ->type_name("NAME")
      ->check(not_empty());
  options->output.add_to(*command);
  command->callback([options, &job] { job = [options] { return split(*options); }; });
}

}  // namespace gdnsim::tools
